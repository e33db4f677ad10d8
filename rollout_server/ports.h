// What the lease loop and the service need from the buffer, the engine and weight sync, as
// interfaces, so that both run against fakes in tests. Implementations are thread-safe.
#ifndef MILLRACE_ROLLOUT_SERVER_PORTS_H_
#define MILLRACE_ROLLOUT_SERVER_PORTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "buffer/buffer_client.h"
#include "rollout_server/engine.h"

namespace millrace {

// The buffer as a rollout server sees it; the calls are those of BufferClient.
class LeaseBuffer {
 public:
  virtual ~LeaseBuffer() = default;
  virtual absl::StatusOr<LeaseResult> Lease(uint32_t max_groups, absl::Duration wait) = 0;
  virtual absl::StatusOr<RenewResult> Renew(const std::vector<LeaseName>& leases) = 0;
  // With no leases: tells the buffer that this process is there.
  virtual absl::Status Release(const std::vector<LeaseName>& leases) = 0;
  virtual void Push(const Trajectory& trajectory, BufferClient::PushCallback done) = 0;
  virtual absl::Status FlushPushes(absl::Duration timeout) = 0;
};

// Samples tokens; the calls are those of Engine.
class SampleEngine {
 public:
  virtual ~SampleEngine() = default;
  virtual absl::StatusOr<uint64_t> Submit(EngineRequest request) = 0;
  virtual void Cancel(uint64_t request) = 0;
  virtual int64_t version() const = 0;
  virtual Engine::Stats stats() const = 0;
};

// Which weight version is active.
class VersionGate {
 public:
  virtual ~VersionGate() = default;
  virtual int64_t active_version() const = 0;  // -1 before the first
  // Waits until active_version() >= version. DEADLINE_EXCEEDED says which version is active, since
  // when, and the last error.
  virtual absl::Status WaitForVersion(int64_t version, absl::Duration timeout) = 0;
};

// Two clients: one that gives up soon for leases (a lease that comes late is useless, and the loop
// asks again), one that holds on for pushes (what was sampled is not thrown away because the buffer
// restarts). Neither is owned.
std::unique_ptr<LeaseBuffer> MakeLeaseBuffer(BufferClient* leases, BufferClient* pushes);
std::unique_ptr<SampleEngine> MakeSampleEngine(Engine* engine);  // not owned

}  // namespace millrace

#endif  // MILLRACE_ROLLOUT_SERVER_PORTS_H_
