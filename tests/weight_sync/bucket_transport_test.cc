// The bucket stream, its server and the transports that read it, over loopback.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/weight_sync/fake_weights.h"
#include "weight_sync/bucket_reader.h"
#include "weight_sync/bucket_server.h"
#include "weight_sync/same_host_transport.h"
#include "weight_sync/tcp_relay_transport.h"
#include "weight_sync/version_writer.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr absl::Duration kLong = absl::Seconds(30);

// One process's worth: a server, and the version it may serve.
struct Source {
  Metrics metrics;
  std::unique_ptr<BucketServer> server;
  std::shared_ptr<VersionBytes> bytes;

  explicit Source(BucketServer::Options options = {}) {
    if (options.run.empty()) options.run = "run";
    options.listen = "127.0.0.1:0";
    server = *BucketServer::Start(options, &metrics);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server->port()); }
};

VersionManifest MakeManifest(const FakeWeights& weights, VersionBuffer** buffer,
                             std::shared_ptr<VersionBuffer>* owner) {
  VersionManifest manifest = *LayOutManifest(weights.spans(), 8192);
  manifest.run = "run";
  manifest.version = 5;
  *owner = std::shared_ptr<VersionBuffer>(*VersionBuffer::Create(manifest.total_size));
  *buffer = owner->get();
  WriteVersion(weights.spans(), 1, *buffer, &manifest);
  return manifest;
}

class BucketTransport : public testing::Test {
 protected:
  // Offers the weights on `source` with `ready` buckets there (all when negative).
  void Offer(Source* source, int ready = -1) {
    std::shared_ptr<VersionBuffer> owner;
    VersionBuffer* buffer = nullptr;
    manifest_ = MakeManifest(weights_, &buffer, &owner);
    BucketServer* server = source->server.get();
    source->bytes = std::make_shared<VersionBytes>(manifest_, owner, [server] { server->Wake(); });
    source->bytes->SetReady(ready < 0 ? manifest_.buckets.size() : static_cast<size_t>(ready));
    source->server->Offer(source->bytes);
  }
  static std::byte* Bytes(const Source& source) { return source.bytes->buffer().data(); }

  // The server counts what it has sent, which may have arrived before.
  static void AwaitSent(const Source& source, uint64_t bytes) {
    const absl::Time end = Clock::Real()->Now() + kLong;
    while (source.server->sent_bytes() < bytes && Clock::Real()->Now() < end) {
      std::this_thread::yield();
    }
  }

  PullRequest Request(std::vector<SyncSource> sources) {
    PullRequest request;
    request.manifest = manifest_;
    request.sources = std::move(sources);
    request.deadline = Clock::Real()->Now() + kLong;
    request.begin = [this](std::shared_ptr<VersionBuffer> buffer)
        -> absl::StatusOr<std::shared_ptr<VersionAssembly>> {
      mapped_ = buffer != nullptr;
      if (buffer == nullptr) buffer = *VersionBuffer::Create(manifest_.total_size);
      assembly_ = std::make_shared<VersionAssembly>(
          std::make_shared<VersionBytes>(manifest_, buffer, nullptr));
      return assembly_;
    };
    return request;
  }
  // However loaded the machine is, a source is left for what it does and not for being slow.
  TcpRelayTransport::Options TcpOptions() {
    TcpRelayTransport::Options options;
    options.run = "run";
    options.patience = kLong;
    return options;
  }
  void ExpectWhole() {
    ASSERT_NE(assembly_, nullptr);
    ASSERT_TRUE(assembly_->complete());
    EXPECT_TRUE(assembly_->VerifyTensors().ok());
    std::vector<NamedSpan> spans = SpansOver(manifest_, assembly_->bytes()->buffer().data());
    for (size_t i = 0; i < spans.size(); ++i) {
      EXPECT_TRUE(spans[i].bytes == weights_.spans()[i].bytes) << spans[i].name;
    }
  }

  FakeWeights weights_{42};
  VersionManifest manifest_;
  std::shared_ptr<VersionAssembly> assembly_;
  bool mapped_ = false;
  PullStats stats_;
};

TEST_F(BucketTransport, PullsEveryByteFromTheLearner) {
  Source learner;
  Offer(&learner);
  TcpRelayTransport tcp(TcpOptions());
  absl::Status status = tcp.Pull(Request({{learner.address(), true}}), &stats_);
  ASSERT_TRUE(status.ok()) << status;
  ExpectWhole();
  EXPECT_EQ(stats_.bytes_from_learner, manifest_.total_size);
  EXPECT_EQ(stats_.bytes_from_peers, 0u);
  AwaitSent(learner, manifest_.total_size);
  EXPECT_EQ(learner.server->sent_bytes(), manifest_.total_size);
}

TEST_F(BucketTransport, AMemberServesBucketsWhileItStillReceivesOthers) {
  Source peer;
  Offer(&peer, 2);
  const size_t count = manifest_.buckets.size();
  TcpRelayTransport tcp(TcpOptions());
  // The rest arrives at the peer only after the reader has the first two.
  std::thread arrival([&] {
    AwaitSent(peer, manifest_.buckets[0].size + manifest_.buckets[1].size);
    for (size_t ready = 3; ready <= count; ++ready) peer.bytes->SetReady(ready);
  });
  absl::Status status = tcp.Pull(Request({{peer.address(), false}}), &stats_);
  arrival.join();
  ASSERT_TRUE(status.ok()) << status;
  ExpectWhole();
  EXPECT_EQ(stats_.bytes_from_peers, manifest_.total_size);
  EXPECT_EQ(stats_.source_failures, 0);
}

TEST_F(BucketTransport, ADeadPeerIsLeftForTheLearner) {
  std::string nobody;
  {
    Source gone;
    nobody = gone.address();
  }
  Source learner;
  Offer(&learner);
  TcpRelayTransport tcp(TcpOptions());
  absl::Status status = tcp.Pull(Request({{nobody, false}, {learner.address(), true}}), &stats_);
  ASSERT_TRUE(status.ok()) << status;
  ExpectWhole();
  EXPECT_EQ(stats_.source_failures, 1);
}

TEST_F(BucketTransport, APeerThatLosesItsTransferIsLeftAtTheBucketWhereItStopped) {
  Source peer, learner;
  Offer(&learner);
  Offer(&peer, 3);
  const uint64_t from_peer =
      manifest_.buckets[0].size + manifest_.buckets[1].size + manifest_.buckets[2].size;
  TcpRelayTransport tcp(TcpOptions());
  std::thread loss([&] {
    AwaitSent(peer, from_peer);
    peer.bytes->SetFailed();
  });
  absl::Status status =
      tcp.Pull(Request({{peer.address(), false}, {learner.address(), true}}), &stats_);
  loss.join();
  ASSERT_TRUE(status.ok()) << status;
  ExpectWhole();
  EXPECT_EQ(stats_.bytes_from_peers, from_peer);
  EXPECT_EQ(stats_.bytes_from_learner, manifest_.total_size - from_peer);
}

TEST_F(BucketTransport, AStalledPeerIsLeftAtTheBucketWhereItStopped) {
  Source peer, learner;
  Offer(&learner);
  Offer(&peer, 3);
  auto options = TcpOptions();
  options.patience = absl::Milliseconds(100);
  TcpRelayTransport tcp(options);
  absl::Status status =
      tcp.Pull(Request({{peer.address(), false}, {learner.address(), true}}), &stats_);
  ASSERT_TRUE(status.ok()) << status;
  ExpectWhole();
  const uint64_t from_peer =
      manifest_.buckets[0].size + manifest_.buckets[1].size + manifest_.buckets[2].size;
  EXPECT_EQ(stats_.bytes_from_peers, from_peer);
  EXPECT_EQ(stats_.bytes_from_learner, manifest_.total_size - from_peer);
}

TEST_F(BucketTransport, ACorruptByteIsFoundRetriedAndTakenFromTheNextSource) {
  Source peer, learner;
  Offer(&learner);
  Offer(&peer);
  Bytes(peer)[manifest_.buckets[2].offset + 5] ^= std::byte{1};
  TcpRelayTransport tcp(TcpOptions());
  absl::Status status =
      tcp.Pull(Request({{peer.address(), false}, {learner.address(), true}}), &stats_);
  ASSERT_TRUE(status.ok()) << status;
  ExpectWhole();
  EXPECT_EQ(stats_.digest_failures, 2);  // once, and once more on a new connection
  EXPECT_EQ(stats_.source_failures, 1);
}

TEST_F(BucketTransport, CorruptBytesFromEverySourceAreNamedAndNeverTaken) {
  Source learner;
  Offer(&learner);
  Bytes(learner)[manifest_.buckets[2].offset] ^= std::byte{1};
  auto options = TcpOptions();
  options.last_retries = 2;
  TcpRelayTransport tcp(options);
  absl::Status status = tcp.Pull(Request({{learner.address(), true}}), &stats_);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("bucket 2 of"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(learner.address()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("digest"));
  EXPECT_EQ(assembly_->next_bucket(), 2u);
}

TEST_F(BucketTransport, StrangersAreRefusedWithTheReason) {
  BucketServer::Options options;
  options.token = "secret";
  Source learner(options);
  Offer(&learner);
  BucketReader::Options reader;
  reader.patience = kLong;
  reader.run = "run";
  EXPECT_THAT(
      std::string(BucketReader::Open(learner.address(), manifest_, reader).status().message()),
      HasSubstr("wrong token"));
  reader.token = "secret";
  reader.run = "another";
  EXPECT_THAT(
      std::string(BucketReader::Open(learner.address(), manifest_, reader).status().message()),
      HasSubstr("wrong run"));
  reader.run = "run";
  EXPECT_TRUE(BucketReader::Open(learner.address(), manifest_, reader).ok());
  VersionManifest other = manifest_;
  other.digest ^= 1;
  EXPECT_TRUE(
      absl::IsFailedPrecondition(BucketReader::Open(learner.address(), other, reader).status()));
  other.version = 6;
  reader.patience = absl::Milliseconds(100);  // the learner waits that long for it
  EXPECT_TRUE(absl::IsNotFound(BucketReader::Open(learner.address(), other, reader).status()));
}

TEST_F(BucketTransport, HostileBytesCloseTheConnectionAndNothingElse) {
  Source learner;
  Offer(&learner);
  StreamHello good{"", "run", 5, manifest_.digest, 0};
  std::string hello = EncodeHello(good);
  std::string wrong_protocol = hello;
  wrong_protocol[4] = 9;
  std::string long_token = hello;
  long_token[6] = '\xff', long_token[7] = '\xff';
  std::string many_requests = hello;
  for (size_t i = 0; i < kMaxRequestsAhead + 1; ++i) many_requests += EncodeRequest({0, 0});
  const std::vector<std::string> inputs = {std::string(64, 'x'),
                                           std::string(4096, '\0'),
                                           "GET / HTTP/1.1\r\n\r\n" + std::string(32, ' '),
                                           wrong_protocol,
                                           long_token,
                                           hello + EncodeRequest({1u << 30, 0}),
                                           many_requests};
  for (size_t i = 0; i < inputs.size(); ++i) {
    SCOPED_TRACE(i);
    absl::Time deadline = Clock::Real()->Now() + kLong;
    Connection c = *Connection::Dial(learner.address(), deadline, -1);
    ASSERT_TRUE(c.SendAll(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(inputs[i].data()),
                                              inputs[i].size()),
                          deadline)
                    .ok());
    // Reads until the server closes.
    std::vector<std::byte> sink(64 << 10);
    absl::StatusOr<size_t> got = c.RecvSome(absl::MakeSpan(sink), deadline);
    while (got.ok()) got = c.RecvSome(absl::MakeSpan(sink), deadline);
    EXPECT_TRUE(absl::IsUnavailable(got.status())) << got.status();
  }
  TcpRelayTransport tcp(TcpOptions());
  EXPECT_TRUE(tcp.Pull(Request({{learner.address(), true}}), &stats_).ok());
}

// A peer that leaves in the middle of sendfile is SIGPIPE to the thread that sends, which ends a
// program that has not ignored it. Whether the kernel gets there is a matter of microseconds, so
// this looks at the thread.
TEST_F(BucketTransport, TheThreadThatSendsBlocksBrokenPipes) {
  const auto blocking = [] {
    std::set<std::string> threads;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream status(task.path() / "status");
      for (std::string line; std::getline(status, line);) {
        if (!absl::StartsWith(line, "SigBlk:")) continue;
        if (std::stoull(line.substr(7), nullptr, 16) >> (SIGPIPE - 1) & 1) {
          threads.insert(task.path().filename());
        }
      }
    }
    return threads;
  };
  // A thread that was joined may be listed for a while yet, so they are told apart by name.
  const std::set<std::string> before = blocking();
  Source learner;
  Offer(&learner);
  TcpRelayTransport tcp(TcpOptions());  // once it has answered, its thread has begun
  EXPECT_TRUE(tcp.Pull(Request({{learner.address(), true}}), &stats_).ok());
  std::set<std::string> added = blocking();
  for (const std::string& thread : before) added.erase(thread);
  EXPECT_THAT(added, SizeIs(1));
}

TEST_F(BucketTransport, ConnectionsAboveTheLimitAreTurnedAwayUntilThereIsRoom) {
  BucketServer::Options options;
  options.max_connections = 1;
  options.hello_timeout = kLong;
  Source learner(options);
  Offer(&learner);
  const absl::Time deadline = Clock::Real()->Now() + kLong;
  std::optional<Connection> silent = *Connection::Dial(learner.address(), deadline, -1);
  BucketReader::Options reader;
  reader.run = "run";
  absl::Status status;
  // A connection that is closed with our words unread may lose the server's.
  do {
    status = BucketReader::Open(learner.address(), manifest_, reader).status();
  } while (absl::IsUnavailable(status) && Clock::Real()->Now() < deadline);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  silent.reset();
  do {
    status = BucketReader::Open(learner.address(), manifest_, reader).status();
  } while (!status.ok() && Clock::Real()->Now() < deadline);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(BucketTransport, ASilentConnectionIsClosed) {
  BucketServer::Options options;
  options.hello_timeout = absl::Milliseconds(50);
  Source learner(options);
  const absl::Time deadline = Clock::Real()->Now() + kLong;
  Connection silent = *Connection::Dial(learner.address(), deadline, -1);
  std::byte sink[1];
  const absl::Status status = silent.RecvSome(absl::MakeSpan(sink), deadline).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(BucketTransport, AbortEndsAPullThatWaits) {
  Source peer;
  Offer(&peer, 1);
  TcpRelayTransport tcp(TcpOptions());
  absl::Status status;
  std::thread puller([&] { status = tcp.Pull(Request({{peer.address(), false}}), &stats_); });
  AwaitSent(peer, manifest_.buckets[0].size);
  tcp.Abort();
  puller.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(absl::IsCancelled(tcp.Pull(Request({{peer.address(), false}}), &stats_)));
}

TEST_F(BucketTransport, ADeadlineThatPassesNamesBucketAndSources) {
  Source peer;
  Offer(&peer, 1);
  auto options = TcpOptions();
  options.patience = absl::Milliseconds(50);
  TcpRelayTransport tcp(options);
  const std::string refused = "did not get the bucket in time";
  // A loaded machine may need more of it to get as far as the bucket that does not come.
  absl::Status status;
  for (absl::Duration time = absl::Milliseconds(200); time < kLong; time *= 2) {
    PullRequest request = Request({{peer.address(), false}});
    request.deadline = Clock::Real()->Now() + time;
    status = tcp.Pull(request, &stats_);
    EXPECT_FALSE(status.ok());
    if (absl::StrContains(status.message(), refused)) break;
  }
  EXPECT_THAT(std::string(status.message()), HasSubstr(refused));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("bucket 1 of ", manifest_.buckets.size(), " of version 5")));
}

TEST_F(BucketTransport, AMappingGivesTheSameBytesAndHoldsTheMemory) {
  Source learner;
  Offer(&learner);
  std::string address = absl::StrCat(kSameHostPrefix, learner.server->same_host_name());
  SameHostTransport same_host({"run", "", absl::Seconds(3)});
  absl::Status status = same_host.Pull(Request({{address, false}}), &stats_);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(mapped_);
  ExpectWhole();
  EXPECT_EQ(learner.server->sent_bytes(), 0u);
  // The server drops the version; the reader's mapping keeps its memory from being reused.
  std::weak_ptr<VersionBytes> weak = learner.bytes;
  learner.bytes.reset();
  learner.server->Retain({6});
  EXPECT_FALSE(weak.expired());
  ExpectWhole();
  assembly_.reset();
  for (absl::Time end = Clock::Real()->Now() + kLong;
       !weak.expired() && Clock::Real()->Now() < end;) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(weak.expired());
}

TEST_F(BucketTransport, AVersionThatHasGoneIsNotWaitedFor) {
  Source peer, learner;
  Offer(&peer);
  Offer(&learner);
  peer.server->Forget(manifest_.version);
  TcpRelayTransport tcp(TcpOptions());  // whose patience is as long as the transfer may take
  absl::Status status =
      tcp.Pull(Request({{peer.address(), false}, {learner.address(), true}}), &stats_);
  ASSERT_TRUE(status.ok()) << status;
  ExpectWhole();
  EXPECT_EQ(stats_.source_failures, 1u);
}

TEST_F(BucketTransport, AMappingOutOfReachIsNotFoundSoThatTcpMayTry) {
  Source learner;
  Offer(&learner);
  SameHostTransport same_host({"run", "", absl::Seconds(3)});
  EXPECT_TRUE(absl::IsNotFound(same_host.Pull(
      Request({{"same-host:millrace-nobody", false}, {learner.address(), true}}), &stats_)));
  EXPECT_TRUE(absl::IsNotFound(same_host.Pull(Request({{learner.address(), true}}), &stats_)));
  EXPECT_EQ(assembly_, nullptr);
}

}  // namespace
}  // namespace millrace
