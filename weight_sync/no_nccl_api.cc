#include "weight_sync/nccl_api.h"

namespace millrace {
namespace {

absl::Status Missing() {
  return absl::UnimplementedError(
      "this program was built without NCCL; configure with the cuda preset (MILLRACE_CUDA=ON)");
}

}  // namespace

absl::StatusOr<std::string> NewNcclId() { return Missing(); }
absl::StatusOr<std::unique_ptr<NcclApi>> MakeNcclApi(int) { return Missing(); }

}  // namespace millrace
