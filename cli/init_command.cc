// `millrace init`: the run directory of processes that are started one by one.
#include <cstdio>

#include "cli/commands.h"
#include "cli/json_lines.h"
#include "cli/run_dir.h"
#include "common/config.h"

namespace millrace {

int InitCommand(const InitOptions& options) {
  const absl::StatusOr<RunConfig> config = LoadConfig(options.config, options.overrides);
  if (!config.ok()) {
    PrintFailure(config.status());
    return 2;
  }
  const absl::StatusOr<RunInit> init = InitRunDir(*config, options.run_dir);
  if (!init.ok()) return PrintFailure(init.status());
  std::printf("%s run %s in %s\n", init->resumed ? "Going on with" : "New",
              config->run.name.c_str(), options.run_dir.c_str());
  for (const std::string& change : init->changes) std::printf("  %s\n", change.c_str());
  return 0;
}

}  // namespace millrace
