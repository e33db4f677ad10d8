#include "weight_sync/nccl_api.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

absl::Status FromCuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(call, ": ", cudaGetErrorString(error)));
}

// A call of a non-blocking communicator may still be in progress; Settled() sees to the rest.
absl::Status FromNccl(ncclResult_t result, const char* call) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(call, ": ", ncclGetErrorString(result)));
}

class RealNccl : public NcclApi {
 public:
  explicit RealNccl(int device) : device_(device) {}
  ~RealNccl() override {
    Abort();
    for (int slot = 0; slot < kSlots; ++slot) {
      if (staging_[slot] != nullptr) cudaFree(staging_[slot]);
      if (events_[slot] != nullptr) cudaEventDestroy(events_[slot]);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  absl::Status Open() {
    MR_RETURN_IF_ERROR(FromCuda(cudaSetDevice(device_), "cudaSetDevice"));
    MR_RETURN_IF_ERROR(FromCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                                "cudaStreamCreateWithFlags"));
    for (cudaEvent_t& event : events_) {
      MR_RETURN_IF_ERROR(FromCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                  "cudaEventCreateWithFlags"));
    }
    return absl::OkStatus();
  }

  absl::Status StartInit(const std::string& unique_id, int rank, int ranks) override {
    ncclUniqueId id;
    if (unique_id.size() != sizeof(id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("an NCCL id has ", sizeof(id), " bytes, not ", unique_id.size()));
    }
    std::memcpy(&id, unique_id.data(), sizeof(id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return FromNccl(ncclCommInitRankConfig(&comm_, ranks, id, rank, &config),
                    "ncclCommInitRankConfig");
  }

  absl::StatusOr<bool> Settled() override {
    ncclResult_t state = ncclSuccess;
    MR_RETURN_IF_ERROR(FromNccl(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError"));
    MR_RETURN_IF_ERROR(FromNccl(state, "the communicator"));
    return state != ncclInProgress;
  }

  absl::Status Allocate(size_t slot_bytes) override {
    for (void*& staging : staging_) {
      MR_RETURN_IF_ERROR(FromCuda(cudaMalloc(&staging, slot_bytes), "cudaMalloc"));
    }
    return absl::OkStatus();
  }

  absl::Status CopyIn(int slot, const std::byte* host, size_t bytes) override {
    return FromCuda(cudaMemcpyAsync(staging_[slot], host, bytes, cudaMemcpyHostToDevice, stream_),
                    "cudaMemcpyAsync");
  }

  absl::Status Broadcast(int slot, size_t bytes) override {
    return FromNccl(
        ncclBroadcast(staging_[slot], staging_[slot], bytes, ncclUint8, 0, comm_, stream_),
        "ncclBroadcast");
  }

  absl::Status CopyOut(int slot, std::byte* host, size_t bytes) override {
    return FromCuda(cudaMemcpyAsync(host, staging_[slot], bytes, cudaMemcpyDeviceToHost, stream_),
                    "cudaMemcpyAsync");
  }

  absl::Status Mark(int slot) override {
    return FromCuda(cudaEventRecord(events_[slot], stream_), "cudaEventRecord");
  }

  absl::StatusOr<bool> Done(int slot) override {
    cudaError_t state = cudaEventQuery(events_[slot]);
    if (state == cudaErrorNotReady) return false;
    MR_RETURN_IF_ERROR(FromCuda(state, "cudaEventQuery"));
    return true;
  }

  void Abort() override {
    if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
  }

 private:
  const int device_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t events_[kSlots] = {};
  void* staging_[kSlots] = {};
};

}  // namespace

absl::StatusOr<std::string> NewNcclId() {
  ncclUniqueId id;
  MR_RETURN_IF_ERROR(FromNccl(ncclGetUniqueId(&id), "ncclGetUniqueId"));
  return std::string(reinterpret_cast<const char*>(&id), sizeof(id));
}

absl::StatusOr<std::unique_ptr<NcclApi>> MakeNcclApi(int device) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || device >= count) {
    return absl::UnavailableError(absl::StrCat(
        "there is no GPU ", device, ": ",
        error == cudaSuccess ? absl::StrCat("this host has ", count) : cudaGetErrorString(error)));
  }
  auto api = std::make_unique<RealNccl>(device);
  MR_RETURN_IF_ERROR(api->Open());
  return api;
}

}  // namespace millrace
