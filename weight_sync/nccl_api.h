// The calls to CUDA and NCCL that nccl_transport.cc makes, for one rank of one communicator with
// two staging buffers on its GPU. An interface, so that what goes around the calls (deadlines,
// double buffering, abort) is tested with a communicator that hangs or fails. One thread.
#ifndef MILLRACE_WEIGHT_SYNC_NCCL_API_H_
#define MILLRACE_WEIGHT_SYNC_NCCL_API_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

class NcclApi {
 public:
  static constexpr int kSlots = 2;  // staging buffers

  virtual ~NcclApi() = default;  // frees everything; aborts a communicator that is still there
  // Starts to form the communicator and returns; Settled() says when it is there.
  virtual absl::Status StartInit(const std::string& unique_id, int rank, int ranks) = 0;
  // Whether no call is in progress; the error of the communicator, if it has one.
  virtual absl::StatusOr<bool> Settled() = 0;
  virtual absl::Status Allocate(size_t slot_bytes) = 0;
  // The next four only put work on the stream.
  virtual absl::Status CopyIn(int slot, const std::byte* host, size_t bytes) = 0;
  virtual absl::Status Broadcast(int slot, size_t bytes) = 0;  // from rank 0
  virtual absl::Status CopyOut(int slot, std::byte* host, size_t bytes) = 0;
  virtual absl::Status Mark(int slot) = 0;
  // Whether the work up to the last Mark() of the slot is done.
  virtual absl::StatusOr<bool> Done(int slot) = 0;
  // Gets out of work that hangs. Nothing but the destructor may follow.
  virtual void Abort() = 0;
};

// The id by which the ranks of one communicator find one another; made by one of them, handed to
// the others.
absl::StatusOr<std::string> NewNcclId();
// UNIMPLEMENTED when built without MILLRACE_CUDA; UNAVAILABLE when there is no such GPU.
absl::StatusOr<std::unique_ptr<NcclApi>> MakeNcclApi(int device);

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_NCCL_API_H_
