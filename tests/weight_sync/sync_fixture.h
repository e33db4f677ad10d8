// A publisher and its subscribers in one process, over loopback, by either transport.
#ifndef MILLRACE_TESTS_WEIGHT_SYNC_SYNC_FIXTURE_H_
#define MILLRACE_TESTS_WEIGHT_SYNC_SYNC_FIXTURE_H_

#include <memory>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/metrics.h"
#include "gtest/gtest.h"
#include "tests/weight_sync/fake_weights.h"
#include "weight_sync/publisher.h"
#include "weight_sync/subscriber.h"

namespace millrace {

inline constexpr absl::Duration kLong = absl::Seconds(60);

struct Member {
  Metrics metrics;
  FakeReceiver receiver;
  std::unique_ptr<Subscriber> subscriber;  // goes first
};

class WeightSync : public testing::TestWithParam<bool> {
 protected:
  void StartPublisher(Publisher::Options options = {}) {
    if (options.run.empty()) options.run = "run";
    if (options.listen == "0.0.0.0:0") options.listen = "127.0.0.1:0";
    options.bucket_listen = "127.0.0.1:0";
    options.bucket_bytes = 8192;
    options.heartbeat = absl::Milliseconds(200);
    options.member_timeout = absl::Seconds(20);
    options.same_host = same_host_;
    learner_metrics_ = std::make_unique<Metrics>();
    absl::StatusOr<std::unique_ptr<Publisher>> started =
        Publisher::Start(options, learner_metrics_.get());
    ASSERT_TRUE(started.ok()) << started.status();
    publisher_ = *std::move(started);
  }
  Subscriber::Options MemberOptions(const std::string& name) {
    Subscriber::Options options;
    options.run = "run";
    options.member = name;
    options.publisher = publisher_->control_address();
    options.control_address = name + ":1";
    options.bucket_listen = "127.0.0.1:0";
    options.same_host = same_host_;
    return options;
  }
  static void Start(Member* member, Subscriber::Options options) {
    absl::StatusOr<std::unique_ptr<Subscriber>> started =
        Subscriber::Start(std::move(options), &member->receiver, &member->metrics);
    ASSERT_TRUE(started.ok()) << started.status();
    member->subscriber = *std::move(started);
  }
  // Waits until the learner knows `count` members.
  void AwaitMembers(size_t count) {
    absl::Time end = Clock::Real()->Now() + kLong;
    while (publisher_->Members().size() != count && Clock::Real()->Now() < end) {
      // Each round trip through the learner's lock; no state of the member says that it polls.
      publisher_->WaitActivated(1 << 30, 1, absl::Milliseconds(1)).IgnoreError();
    }
    ASSERT_EQ(publisher_->Members().size(), count);
  }
  std::string AwaitError(const std::string& text) {
    absl::Time end = Clock::Real()->Now() + kLong;
    std::string last;
    while (Clock::Real()->Now() < end) {
      for (const MemberInfo& m : publisher_->Members()) last = m.last_error;
      if (last.find(text) != std::string::npos) break;
      publisher_->WaitActivated(1 << 30, 1, absl::Milliseconds(1)).IgnoreError();
    }
    return last;
  }

  bool same_host_ = false;
  std::unique_ptr<Metrics> learner_metrics_;
  std::unique_ptr<Publisher> publisher_;
};

class BothTransports : public WeightSync {
 protected:
  BothTransports() { same_host_ = GetParam(); }
};

inline std::string TransportName(const testing::TestParamInfo<bool>& info) {
  return info.param ? "SameHost" : "Tcp";
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_WEIGHT_SYNC_SYNC_FIXTURE_H_
