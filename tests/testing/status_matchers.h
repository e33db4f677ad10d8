// GoogleTest matchers for absl::Status and absl::StatusOr (the absl of Debian 12 has none).
//
//   EXPECT_OK(store.Open());
//   ASSERT_OK_AND_ASSIGN(auto batch, client.NextBatch(1));
//   EXPECT_THAT(Load("x"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("x")));
#ifndef MILLRACE_TESTS_TESTING_STATUS_MATCHERS_H_
#define MILLRACE_TESTS_TESTING_STATUS_MATCHERS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"

namespace millrace::testing {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}

MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

MATCHER_P2(StatusIsImpl, code, message_matcher,
           "has code " + absl::StatusCodeToString(code) + " and a message that " +
               ::testing::DescribeMatcher<std::string>(message_matcher, negation)) {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status.ToString();
  return status.code() == code &&
         ::testing::Value(std::string(status.message()),
                          ::testing::MatcherCast<std::string>(message_matcher));
}

template <typename M>
auto StatusIs(absl::StatusCode code, M message_matcher) {
  return StatusIsImpl(code, ::testing::MatcherCast<std::string>(message_matcher));
}
inline auto StatusIs(absl::StatusCode code) {
  return StatusIsImpl(code, ::testing::Matcher<std::string>(::testing::_));
}

// An OK StatusOr whose value matches.
MATCHER_P(IsOkAndHolds, matcher, "is OK and holds a value that matches") {
  if (!arg.ok()) {
    *result_listener << arg.status().ToString();
    return false;
  }
  return ::testing::ExplainMatchResult(matcher, *arg, result_listener);
}

}  // namespace millrace::testing

#define EXPECT_OK(expr) EXPECT_THAT(expr, ::millrace::testing::IsOk())
#define ASSERT_OK(expr) ASSERT_THAT(expr, ::millrace::testing::IsOk())
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  MR_ASSERT_OK_AND_ASSIGN_IMPL(MR_STATUS_CONCAT(mr_test_statusor_, __LINE__), lhs, expr)
#define MR_ASSERT_OK_AND_ASSIGN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  ASSERT_TRUE(tmp.ok()) << tmp.status().ToString();  \
  lhs = *std::move(tmp)

#endif  // MILLRACE_TESTS_TESTING_STATUS_MATCHERS_H_
