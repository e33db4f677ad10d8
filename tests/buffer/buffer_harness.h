// A buffer with its gRPC server in this process.
#ifndef MILLRACE_TESTS_BUFFER_BUFFER_HARNESS_H_
#define MILLRACE_TESTS_BUFFER_BUFFER_HARNESS_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/buffer/builders.h"
#include "tests/testing/status_matchers.h"

namespace millrace::testing {

inline constexpr absl::Duration kLong =
    absl::Seconds(60);  // a limit, never reached when all is well

class BufferHarness {
 public:
  struct Settings {
    Clock* clock = Clock::Real();
    BufferService::Options service;
    int64_t max_pages = 0;
    GroupStoreOptions groups = SmallCore("", nullptr).groups;
  };
  explicit BufferHarness(Settings settings) : settings_(std::move(settings)) { Start(); }
  BufferHarness() : BufferHarness(Settings()) {}
  ~BufferHarness() { Stop(); }

  void Start() {
    BufferCore::Options options = SmallCore(dir_.File("buffer.sqlite"), &metrics_);
    options.clock = settings_.clock;
    options.max_pages = settings_.max_pages;
    options.groups = settings_.groups;
    absl::StatusOr<std::unique_ptr<BufferCore>> opened = BufferCore::Open(options);
    ASSERT_OK(opened);
    core_ = *std::move(opened);
    service_ = std::make_unique<BufferService>(core_.get(), settings_.service);
    absl::StatusOr<RunningServer> server =
        StartGrpcServer(absl::StrCat("127.0.0.1:", port_), {service_.get()});
    ASSERT_OK(server);
    server_ = *std::move(server);
    port_ = server_.port;
  }
  // Cuts every call off.
  void Stop() {
    if (server_.server != nullptr) server_.server->Shutdown(std::chrono::system_clock::now());
    server_.server.reset();
    service_.reset();
    core_.reset();
  }

  BufferClient::Options ClientOptions(const std::string& server = "rollout-0",
                                      const std::string& run = "run-a") const {
    return {absl::StrCat("127.0.0.1:", port_), run, server, kLong};
  }
  std::unique_ptr<v1::Buffer::Stub> Stub() const {
    return v1::Buffer::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", port_)));
  }
  BufferCore& core() { return *core_; }
  Metrics& metrics() { return metrics_; }
  std::string store_path() const { return dir_.File("buffer.sqlite"); }

 private:
  const Settings settings_;
  TempDir dir_;
  Metrics metrics_;
  int port_ = 0;
  std::unique_ptr<BufferCore> core_;
  std::unique_ptr<BufferService> service_;
  RunningServer server_;
};

struct PushResult {
  absl::StatusOr<PushOutcome> outcome = absl::UnknownError("no answer");
  std::string reason;
};

// Pushes one trajectory and waits for its answer.
inline PushResult PushAndWait(BufferClient& client, Trajectory trajectory) {
  PushResult result;
  absl::Notification answered;
  client.Push(std::move(trajectory),
              [&](absl::StatusOr<PushOutcome> outcome, const std::string& reason) {
                result = {std::move(outcome), reason};
                answered.Notify();
              });
  EXPECT_TRUE(answered.WaitForNotificationWithTimeout(kLong));
  return result;
}

// All members of a lease; their rewards differ when `good`.
inline void PushGroup(BufferClient& client, const GroupLease& lease, bool good = true,
                      int64_t version = 0) {
  for (const uint32_t index : lease.missing) {
    const PushResult result =
        PushAndWait(client, MakeTrajectory("run-a", lease, index, good ? index : 1, version));
    ASSERT_OK(result.outcome);
    ASSERT_EQ(*result.outcome, PushOutcome::kStored) << result.reason;
  }
}

}  // namespace millrace::testing

#endif  // MILLRACE_TESTS_BUFFER_BUFFER_HARNESS_H_
