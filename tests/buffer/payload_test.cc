#include "buffer/payload.h"

#include <gtest/gtest.h>

#include <random>

#include "buffer/trajectory_proto.h"
#include "tests/buffer/builders.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using millrace::testing::MakeTrajectory;
using millrace::testing::StatusIs;
using ::testing::HasSubstr;

Trajectory OnlyArrays(const Trajectory& t) {
  Trajectory result;
  result.token_ids = t.token_ids;
  result.loss_mask = t.loss_mask;
  result.logprobs = t.logprobs;
  result.versions = t.versions;
  return result;
}

TEST(PayloadTest, ComesBackAsItWentInForAnyLength) {
  for (size_t tokens = 5; tokens < 40; ++tokens) {
    const Trajectory t = OnlyArrays(MakeTrajectory({"r", 1, 0, 0}, 1, 3, tokens));
    Trajectory back;
    ASSERT_OK(DecodePayload(EncodePayload(t), &back));
    EXPECT_EQ(back, t) << tokens << " tokens";
  }
}

TEST(PayloadTest, LayoutOfVersionOneIsFixed) {
  Trajectory t;
  t.token_ids = {1, 258};
  t.loss_mask = {0, 1};
  t.logprobs = {0, -1};
  t.versions = {{7, 1, 2}};
  const std::string payload = EncodePayload(t);
  const std::string before_checksum(
      "MRT1\x02\0\0\0\x01\0\0\0\0\0\0\0"         // magic, tokens, spans, flags
      "\x01\0\0\0\x02\x01\0\0"                   // token ids
      "\x02"                                     // mask bits
      "\0\0\0\0\0\0\x80\xbf"                     // logprobs
      "\x07\0\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0",  // span
      16 + 8 + 1 + 8 + 16);
  EXPECT_EQ(payload.substr(0, payload.size() - 8), before_checksum);
}

TEST(PayloadTest, AnyFlippedBitOrCutIsDataLoss) {
  const std::string good = EncodePayload(MakeTrajectory({"r", 1, 0, 0}, 1));
  Trajectory t;
  for (size_t byte = 0; byte < good.size(); ++byte) {
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ (1 << (byte % 8)));
    ASSERT_THAT(DecodePayload(bad, &t), StatusIs(absl::StatusCode::kDataLoss)) << "byte " << byte;
    ASSERT_THAT(DecodePayload(good.substr(0, byte), &t), StatusIs(absl::StatusCode::kDataLoss))
        << "cut at " << byte;
  }
}

TEST(TrajectoryProtoTest, ComesBackAsItWentIn) {
  const Trajectory t = MakeTrajectory({"r", 5, 1, 2}, 0.5);
  v1::Trajectory proto;
  ToProto(t, &proto);
  ASSERT_OK_AND_ASSIGN(const Trajectory back, FromProto(proto));
  EXPECT_EQ(back, t);
}

TEST(TrajectoryProtoTest, AnUnknownStatusIsAnError) {
  v1::Trajectory proto;
  EXPECT_THAT(FromProto(proto), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("status")));
}

TEST(TrajectoryProtoTest, SampledBytesThatAreNoTextAreReplaced) {
  struct {
    std::string bytes, text;
  } cases[] = {
      {"plain", "plain"},
      {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
      {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
      {"a\xff"
       "b",
       "a\xef\xbf\xbd"
       "b"},
      {"cut \xe2\x82", "cut \xef\xbf\xbd\xef\xbf\xbd"},
      {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},                  // overlong
      {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},  // surrogate
  };
  for (const auto& c : cases) EXPECT_EQ(ValidUtf8(c.bytes), c.text);
  Trajectory t = MakeTrajectory({"r", 5, 1, 2}, 0.5);
  t.completion_text = "\xff\xfe";
  v1::Trajectory proto, parsed;
  ToProto(t, &proto);
  EXPECT_TRUE(parsed.ParseFromString(proto.SerializeAsString()));
}

}  // namespace
}  // namespace millrace
