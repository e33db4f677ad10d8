// A role for tests: announces itself, then does what run.name says.
#include <string>

#include "common/process.h"
#include "common/status_macros.h"

int main(int argc, char** argv) {
  return millrace::RunRole(argc, argv, "test", [](millrace::Role& role) -> absl::Status {
    MR_RETURN_IF_ERROR(role.Announce("127.0.0.1:1"));
    role.Event("started", R"({"steps":3})");
    if (role.config.run.name == "fail") return absl::InternalError("the body failed as told");
    if (role.config.run.name == "give-up") {
      return millrace::GaveUp(absl::DeadlineExceededError("waited in vain"));
    }
    if (role.config.run.name == "quick") return absl::OkStatus();
    if (!role.WaitForStop(absl::Seconds(60))) return absl::DeadlineExceededError("no signal came");
    role.Event("stopping");
    return absl::OkStatus();
  });
}
