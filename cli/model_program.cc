// The commands that compute with a model, in the program that is linked without LibTorch: they are
// handed to millrace-model, which stands beside it and takes the same command line. LibTorch alone
// takes 0.3 s and 110 MB to load, which `millrace train` would hold for as long as a run goes on.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "cli/commands.h"
#include "cli/run_dir.h"
#include "common/files.h"

namespace millrace {
namespace {

// Returns only when the program can't be started.
int RunModelProgram() {
  const std::string program = JoinPath(OwnFolder(), "millrace-model");
  const absl::StatusOr<std::string> line = ReadFile("/proc/self/cmdline");
  if (!line.ok()) {
    std::fprintf(stderr, "millrace: %s\n", line.status().ToString().c_str());
    return 1;
  }
  std::vector<std::string> words = absl::StrSplit(*line, '\0');
  words.pop_back();  // after the last end of a word
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(program.c_str(), arguments.data());
  std::fprintf(stderr, "millrace: cannot start %s: %s\n", program.c_str(), std::strerror(errno));
  return 1;
}

}  // namespace

int ChatCommand(const ChatOptions&) { return RunModelProgram(); }
int EvalCommand(const EvalOptions&) { return RunModelProgram(); }
int ScoreCommand(const ScoreOptions&) { return RunModelProgram(); }
int GenerateCommand(const GenerateOptions&) { return RunModelProgram(); }

}  // namespace millrace
