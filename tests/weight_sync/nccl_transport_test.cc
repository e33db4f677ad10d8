// The NCCL transport's orchestration with a fake communicator, and the real one where there is a
// GPU.
#include "weight_sync/nccl_transport.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/weight_sync/fake_weights.h"
#include "weight_sync/version_writer.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(30);
const std::string kId(128, 'i');

// What a group of fake ranks shares: rank 0's staging buffers as the "wire", and the faults.
struct FakeGroup {
  absl::Mutex mu;
  std::vector<std::vector<std::byte>> sent ABSL_GUARDED_BY(mu);  // by bucket
  int joined ABSL_GUARDED_BY(mu) = 0;
  int hang_at_bucket = -1;  // this broadcast never ends
  int fail_at_bucket = -1;  // this one ends with an error
  int corrupt_bucket = -1;
  bool never_forms = false;
  int aborts ABSL_GUARDED_BY(mu) = 0;

  int Aborts() {
    absl::MutexLock lock(&mu);
    return aborts;
  }
  std::atomic<unsigned> hanging{0};  // bit r: rank r waits for hang_at_bucket
};

// Real time, until both ranks of the group hang; then an hour is gone. So a deadline passes when
// there is nothing else left to happen, however long it took to get there.
class ClockOfHang : public Clock {
 public:
  explicit ClockOfHang(const FakeGroup* group) : group_(group) {}
  absl::Time Now() override {
    return Clock::Real()->Now() + (group_->hanging == 3 ? absl::Hours(1) : absl::ZeroDuration());
  }
  bool AwaitWithDeadline(absl::Mutex* mu, const absl::Condition& cond, absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return Clock::Real()->AwaitWithDeadline(mu, cond, Clock::Real()->Now() + (deadline - Now()));
  }

 private:
  const FakeGroup* const group_;
};

// Runs everything when it is asked for, as a stream that is infinitely fast would.
class FakeNccl : public NcclApi {
 public:
  explicit FakeNccl(FakeGroup* group) : group_(group) {}
  absl::Status StartInit(const std::string& id, int rank, int ranks) override {
    EXPECT_EQ(id, kId);
    rank_ = rank;
    ranks_ = ranks;
    absl::MutexLock lock(&group_->mu);
    ++group_->joined;
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Settled() override {
    absl::MutexLock lock(&group_->mu);
    EXPECT_FALSE(aborted_) << "nothing may follow an abort";
    return !group_->never_forms && group_->joined >= ranks_;
  }
  absl::Status Allocate(size_t bytes) override {
    for (auto& s : staging_) s.resize(bytes);
    return absl::OkStatus();
  }
  absl::Status CopyIn(int slot, const std::byte* host, size_t bytes) override {
    EXPECT_EQ(rank_, 0);
    std::copy_n(host, bytes, staging_[slot].data());
    return absl::OkStatus();
  }
  absl::Status Broadcast(int slot, size_t bytes) override {
    bucket_[slot] = next_++;
    if (rank_ != 0) return absl::OkStatus();
    absl::MutexLock lock(&group_->mu);
    group_->sent.emplace_back(staging_[slot].begin(),
                              staging_[slot].begin() + static_cast<long>(bytes));
    return absl::OkStatus();
  }
  absl::Status CopyOut(int slot, std::byte* host, size_t bytes) override {
    EXPECT_NE(rank_, 0);
    host_[slot] = host;
    bytes_[slot] = bytes;
    return absl::OkStatus();
  }
  absl::Status Mark(int slot) override { return absl::OkStatus(); }
  absl::StatusOr<bool> Done(int slot) override {
    const int bucket = bucket_[slot];
    if (bucket == group_->fail_at_bucket) return absl::UnavailableError("remote rank is gone");
    if (bucket == group_->hang_at_bucket) {
      group_->hanging |= 1u << rank_;
      return false;
    }
    absl::MutexLock lock(&group_->mu);
    if (static_cast<size_t>(bucket) >= group_->sent.size()) return false;
    if (rank_ == 0) return true;
    std::copy_n(group_->sent[bucket].data(), bytes_[slot], host_[slot]);
    if (bucket == group_->corrupt_bucket) host_[slot][0] ^= std::byte{1};
    return true;
  }
  void Abort() override {
    absl::MutexLock lock(&group_->mu);
    aborted_ = true;
    ++group_->aborts;
  }

 private:
  FakeGroup* const group_;
  int rank_ = 0, ranks_ = 0, next_ = 0;
  bool aborted_ = false;
  std::vector<std::byte> staging_[kSlots];
  int bucket_[kSlots] = {};
  std::byte* host_[kSlots] = {};
  size_t bytes_[kSlots] = {};
};

class NcclTransportTest : public testing::Test {
 protected:
  NcclTransportTest() {
    manifest_ = *LayOutManifest(weights_.spans(), 8192);
    manifest_.run = "run";
    manifest_.version = 5;
    std::shared_ptr<VersionBuffer> buffer = *VersionBuffer::Create(manifest_.total_size);
    WriteVersion(weights_.spans(), 1, buffer.get(), &manifest_);
    source_ = std::make_unique<VersionBytes>(manifest_, buffer, nullptr);
    source_->SetReady(manifest_.buckets.size());
  }
  std::unique_ptr<VersionAssembly> Assembly() {
    return std::make_unique<VersionAssembly>(std::make_shared<VersionBytes>(
        manifest_, std::shared_ptr<VersionBuffer>(*VersionBuffer::Create(manifest_.total_size)),
        nullptr));
  }
  std::unique_ptr<NcclRank> Rank(int rank, int ranks) {
    return std::make_unique<NcclRank>(std::make_unique<FakeNccl>(&group_),
                                      NcclPlace{rank, ranks, kId}, &clock_);
  }
  // Rank 0 sends and rank 1 receives; returns both outcomes.
  std::pair<absl::Status, absl::Status> SendAndReceive(VersionAssembly* into) {
    const absl::Time deadline = clock_.Now() + kLong;
    absl::Status sent;
    std::thread sender([&] {
      auto rank = Rank(0, 2);
      sent = rank->Form(deadline);
      if (sent.ok()) sent = rank->Send(*source_, deadline);
    });
    auto rank = Rank(1, 2);
    absl::Status received = rank->Form(deadline);
    if (received.ok()) received = rank->Receive(into, deadline);
    sender.join();
    return {sent, received};
  }

  FakeWeights weights_{77};
  VersionManifest manifest_;
  std::unique_ptr<VersionBytes> source_;
  FakeGroup group_;
  ClockOfHang clock_{&group_};
};

TEST(NcclPlace, SurvivesTheWayThroughAnAddressAndRefusesTheRest) {
  absl::StatusOr<NcclPlace> place = ParseNcclPlace(FormatNcclPlace({3, 8, kId}));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->rank, 3);
  EXPECT_EQ(place->ranks, 8);
  EXPECT_EQ(place->unique_id, kId);
  const std::string hex(256, 'a');
  for (const std::string& bad : std::vector<std::string>{
           "", "nccl:", "nccl:1:" + hex, "nccl:2/2:" + hex, "nccl:-1/2:" + hex, "nccl:x/2:" + hex,
           "nccl:0/2:abcd", "nccl:0/2:" + std::string(256, 'g'), "tcp:0/2:" + hex}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseNcclPlace(bad).status())) << bad;
  }
}

TEST_F(NcclTransportTest, EveryBucketArrivesThroughTheTwoBuffers) {
  auto assembly = Assembly();
  auto [sent, received] = SendAndReceive(assembly.get());
  EXPECT_TRUE(sent.ok()) << sent;
  ASSERT_TRUE(received.ok()) << received;
  EXPECT_TRUE(assembly->complete());
  EXPECT_TRUE(assembly->VerifyTensors().ok());
  EXPECT_EQ(group_.Aborts(), 0);
}

TEST_F(NcclTransportTest, AGroupThatNeverFormsIsAbortedAtTheDeadline) {
  group_.never_forms = true;
  auto rank = Rank(1, 2);
  absl::Status status = rank->Form(Clock::Real()->Now() + absl::Milliseconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 1 of 2"), HasSubstr("the other ranks to join")));
  EXPECT_EQ(group_.Aborts(), 1);
}

TEST_F(NcclTransportTest, ABroadcastThatHangsIsAbortedByEveryRankAndNamed) {
  group_.hang_at_bucket = 3;
  auto assembly = Assembly();
  auto [sent, received] = SendAndReceive(assembly.get());
  EXPECT_TRUE(absl::IsDeadlineExceeded(sent)) << sent;
  EXPECT_TRUE(absl::IsDeadlineExceeded(received)) << received;
  EXPECT_THAT(std::string(received.message()),
              AllOf(HasSubstr("rank 1 of 2"), HasSubstr("bucket 3 of version 5")));
  EXPECT_EQ(group_.Aborts(), 2);
  EXPECT_EQ(assembly->next_bucket(), 3u);
}

TEST_F(NcclTransportTest, AnErrorOfTheCommunicatorIsAStatusAndAbortsIt) {
  group_.fail_at_bucket = 2;
  auto assembly = Assembly();
  auto [sent, received] = SendAndReceive(assembly.get());
  EXPECT_TRUE(absl::IsUnavailable(sent)) << sent;
  EXPECT_TRUE(absl::IsUnavailable(received)) << received;
  EXPECT_THAT(std::string(received.message()), HasSubstr("remote rank is gone"));
  EXPECT_EQ(group_.Aborts(), 2);
}

TEST_F(NcclTransportTest, ACorruptBucketIsNeverTaken) {
  group_.corrupt_bucket = 1;
  auto assembly = Assembly();
  auto [sent, received] = SendAndReceive(assembly.get());
  EXPECT_TRUE(absl::IsDataLoss(received)) << received;
  EXPECT_THAT(std::string(received.message()), HasSubstr("bucket 1 of version 5"));
  EXPECT_EQ(assembly->next_bucket(), 1u);
}

TEST_F(NcclTransportTest, AsATransportItTakesThePlaceThatASourceNames) {
  const absl::Time deadline = Clock::Real()->Now() + kLong;
  NcclTransport transport(
      [&]() -> absl::StatusOr<std::unique_ptr<NcclApi>> {
        return std::make_unique<FakeNccl>(&group_);
      },
      Clock::Real());
  PullRequest request;
  request.manifest = manifest_;
  request.deadline = deadline;
  std::shared_ptr<VersionAssembly> assembly;
  request.begin =
      [&](std::shared_ptr<VersionBuffer>) -> absl::StatusOr<std::shared_ptr<VersionAssembly>> {
    return assembly = Assembly();
  };
  PullStats stats;
  request.sources = {{"127.0.0.1:1", true}};
  EXPECT_TRUE(absl::IsNotFound(transport.Pull(request, &stats)));
  request.sources = {{FormatNcclPlace({1, 2, kId}), false}, {"127.0.0.1:1", true}};
  absl::Status sent;
  std::thread sender([&] {
    auto rank = Rank(0, 2);
    sent = rank->Form(deadline);
    if (sent.ok()) sent = rank->Send(*source_, deadline);
  });
  absl::Status pulled = transport.Pull(request, &stats);
  sender.join();
  ASSERT_TRUE(pulled.ok()) << pulled;
  EXPECT_TRUE(assembly->VerifyTensors().ok());
  EXPECT_EQ(stats.bytes_from_learner, manifest_.total_size);
}

TEST_F(NcclTransportTest, AbortEndsAPullThatHangs) {
  group_.never_forms = true;
  NcclTransport transport(
      [&]() -> absl::StatusOr<std::unique_ptr<NcclApi>> {
        return std::make_unique<FakeNccl>(&group_);
      },
      Clock::Real());
  PullRequest request;
  request.manifest = manifest_;
  request.deadline = Clock::Real()->Now() + kLong;
  request.sources = {{FormatNcclPlace({1, 2, kId}), false}};
  PullStats stats;
  absl::Status status;
  std::thread puller([&] { status = transport.Pull(request, &stats); });
  auto joined = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return group_.joined > 0; };
  {
    absl::MutexLock lock(&group_.mu);
    group_.mu.AwaitWithTimeout(absl::Condition(&joined), kLong);
  }
  transport.Abort();
  puller.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST_F(NcclTransportTest, OneRankOfTheRealLibraryBroadcastsToItself) {
  absl::StatusOr<std::unique_ptr<NcclApi>> api = MakeNcclApi(0);
  if (!api.ok()) GTEST_SKIP() << "no NCCL on this machine: " << api.status();
  absl::StatusOr<std::string> id = NewNcclId();
  ASSERT_TRUE(id.ok()) << id.status();
  NcclRank rank(*std::move(api), NcclPlace{0, 1, *id}, Clock::Real());
  const absl::Time deadline = Clock::Real()->Now() + kLong;
  absl::Status status = rank.Form(deadline);
  ASSERT_TRUE(status.ok()) << status;
  status = rank.Send(*source_, deadline);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace millrace
