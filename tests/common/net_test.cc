#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include "absl/strings/str_cat.h"
#include "common/grpc_util.h"
#include "common/http_server.h"
#include "common/net_util.h"
#include "proto/buffer.grpc.pb.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NetUtilTest, AddressesAreTakenApart) {
  ASSERT_OK_AND_ASSIGN(const HostPort a, ParseHostPort("host-1.example:7001"));
  EXPECT_EQ(a.host, "host-1.example");
  EXPECT_EQ(a.port, 7001);
  ASSERT_OK_AND_ASSIGN(const HostPort b, ParseHostPort("[::1]:0"));
  EXPECT_EQ(b.host, "::1");
  for (const char* bad : {"", "host", ":1", "host:", "host:x", "host:65536", "host:-1", "::1:7"}) {
    EXPECT_THAT(ParseHostPort(bad), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(bad)));
  }
}

TEST(NetUtilTest, AddressesArePutTogetherAsTheyAreTakenApart) {
  EXPECT_EQ(JoinHostPort("host-1.example", 7001), "host-1.example:7001");
  EXPECT_EQ(JoinHostPort("::1", 7001), "[::1]:7001");
  EXPECT_EQ(JoinHostPort("[::1]", 7001), "[::1]:7001");
  EXPECT_EQ(AnyPortOf("127.0.0.1:7001"), "127.0.0.1:0");
  EXPECT_EQ(AnyPortOf("[::]:7001"), "[::]:0");
  EXPECT_EQ(AnyPortOf("nonsense"), "0.0.0.0:0");
}

// "localhost" is ::1 and 127.0.0.1 even where the machine has no ::1.
TEST(NetUtilTest, AnAddressThatTheMachineHasIsEnoughToListenOn) {
  const std::string other = "192.0.2.1";  // of no machine
  EXPECT_OK(CheckCanBindAny("name", {other, "127.0.0.1"}, 0));
  EXPECT_OK(CheckCanBindAny("name", {"127.0.0.1", other}, 0));
  EXPECT_THAT(CheckCanBindAny("name", {other}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot listen on name:0")));
  v1::Buffer::Service service;
  ASSERT_OK_AND_ASSIGN(RunningServer taken, StartGrpcServer("127.0.0.1:0", {&service}));
  EXPECT_THAT(CheckCanBindAny("name", {other, "127.0.0.1"}, taken.port),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("in use")));
  taken.server->Shutdown();
}

TEST(GrpcServerTest, PortZeroGivesAFreePort) {
  v1::Buffer::Service service;
  ASSERT_OK_AND_ASSIGN(RunningServer server, StartGrpcServer("127.0.0.1:0", {&service}));
  EXPECT_GT(server.port, 0);
  server.server->Shutdown();
}

TEST(GrpcServerTest, ATakenPortIsNamed) {
  v1::Buffer::Service service;
  ASSERT_OK_AND_ASSIGN(RunningServer first, StartGrpcServer("127.0.0.1:0", {&service}));
  const std::string address = absl::StrCat("127.0.0.1:", first.port);
  EXPECT_THAT(
      StartGrpcServer(address, {&service}),
      StatusIs(absl::StatusCode::kAlreadyExists, AllOf(HasSubstr(address), HasSubstr("in use"))));
  first.server->Shutdown();
}

TEST(GrpcServerTest, AHostOfAnotherMachineIsRefused) {
  v1::Buffer::Service service;
  EXPECT_THAT(StartGrpcServer("192.0.2.1:0", {&service}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("192.0.2.1")));
}

TEST(GrpcUtilTest, CodesGoOverOneToOneAndBack) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "because");
    const absl::Status back = FromGrpc(ToGrpc(status), "Lease on buffer at h:1");
    EXPECT_EQ(back.code(), status.code());
    EXPECT_EQ(back.message(), "Lease on buffer at h:1: because");
  }
  EXPECT_OK(FromGrpc(ToGrpc(absl::OkStatus()), "x"));
}

TEST(GrpcUtilTest, OnlyErrorsThatPassAreRetryable) {
  EXPECT_TRUE(IsRetryable(absl::UnavailableError("")));
  EXPECT_TRUE(IsRetryable(absl::DeadlineExceededError("")));
  EXPECT_TRUE(IsRetryable(absl::AbortedError("")));
  EXPECT_TRUE(IsRetryable(absl::ResourceExhaustedError("queue full")));
  EXPECT_FALSE(
      IsRetryable(absl::ResourceExhaustedError("Received message larger than max (99 vs. 64)")));
  EXPECT_FALSE(IsRetryable(absl::InvalidArgumentError("")));
  EXPECT_FALSE(IsRetryable(absl::OkStatus()));
}

TEST(HttpServerTest, ServesMetricsAndHealth) {
  Metrics metrics;
  Gauge& gauge = metrics.AddGauge("depth", "D.");
  absl::Status health = absl::OkStatus();
  HttpServer::Options options;
  options.host = "127.0.0.1";
  options.health = [&] { return health; };
  options.before_scrape = [&] { gauge.Set(5); };
  ASSERT_OK_AND_ASSIGN(auto server, HttpServer::Start(options, &metrics));
  httplib::Client client("127.0.0.1", server->port());
  auto scraped = client.Get("/metrics");
  ASSERT_TRUE(scraped);
  EXPECT_EQ(scraped->status, 200);
  EXPECT_THAT(scraped->body, HasSubstr("depth 5"));
  EXPECT_EQ(client.Get("/healthz")->status, 200);
  health = absl::UnavailableError("no buffer at h:1 for 12 s");
  auto sick = client.Get("/healthz");
  EXPECT_EQ(sick->status, 503);
  EXPECT_THAT(sick->body, HasSubstr("no buffer at h:1 for 12 s"));
  EXPECT_EQ(client.Get("/nope")->status, 404);
}

TEST(HttpServerTest, OneThatHasNotBegunToServeInTimeIsGivenUp) {
  Metrics metrics;
  HttpServer::Options options;
  options.host = "127.0.0.1";
  options.start_timeout = absl::ZeroDuration();
  EXPECT_THAT(HttpServer::Start(options, &metrics),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("waited 0 for the HTTP server on 127.0.0.1:"),
                             HasSubstr("to begin to serve"))));
}

TEST(HttpServerTest, ATakenPortIsNamed) {
  Metrics metrics;
  HttpServer::Options options;
  options.host = "127.0.0.1";
  ASSERT_OK_AND_ASSIGN(auto first, HttpServer::Start(options, &metrics));
  options.port = first->port();
  EXPECT_THAT(HttpServer::Start(options, &metrics),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr(absl::StrCat("127.0.0.1:", options.port))));
}

}  // namespace
}  // namespace millrace
