#include "rollout_server/ports.h"

#include <utility>

namespace millrace {
namespace {

class ClientLeaseBuffer : public LeaseBuffer {
 public:
  ClientLeaseBuffer(BufferClient* leases, BufferClient* pushes)
      : leases_(leases), pushes_(pushes) {}
  absl::StatusOr<LeaseResult> Lease(uint32_t max_groups, absl::Duration wait) override {
    return leases_->Lease(max_groups, wait);
  }
  absl::StatusOr<RenewResult> Renew(const std::vector<LeaseName>& leases) override {
    return leases_->Renew(leases);
  }
  absl::Status Release(const std::vector<LeaseName>& leases) override {
    return leases_->Release(leases);
  }
  void Push(const Trajectory& trajectory, BufferClient::PushCallback done) override {
    pushes_->Push(trajectory, std::move(done));
  }
  absl::Status FlushPushes(absl::Duration timeout) override {
    return pushes_->FlushPushes(timeout);
  }

 private:
  BufferClient* const leases_;
  BufferClient* const pushes_;
};

}  // namespace

std::unique_ptr<LeaseBuffer> MakeLeaseBuffer(BufferClient* leases, BufferClient* pushes) {
  return std::make_unique<ClientLeaseBuffer>(leases, pushes);
}

}  // namespace millrace
