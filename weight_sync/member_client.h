// The member's calls to the learner's WeightSync service, with deadlines and errors that say which
// call failed. Cancel() may come from any thread; the rest is thread-safe too.
#ifndef MILLRACE_WEIGHT_SYNC_MEMBER_CLIENT_H_
#define MILLRACE_WEIGHT_SYNC_MEMBER_CLIENT_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/weight_sync.grpc.pb.h"

namespace millrace {

class MemberClient {
 public:
  explicit MemberClient(std::string address);

  absl::StatusOr<v1::JoinReply> Join(const v1::JoinRequest& request);
  // Waits up to request.wait_ms at the learner.
  absl::StatusOr<v1::PollReply> Poll(const v1::PollRequest& request);
  absl::Status Report(const v1::ReportRequest& request);
  // May be called after Cancel().
  absl::Status Leave(uint64_t member_id);
  // Ends the calls under way, and refuses later ones but Leave.
  void Cancel();

 private:
  // Registers a call for Cancel(); CANCELLED after it.
  absl::Status Begin(grpc::ClientContext* context, absl::Duration timeout);
  void End(grpc::ClientContext* context);

  const std::string address_;
  std::unique_ptr<v1::WeightSync::Stub> stub_;
  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_MEMBER_CLIENT_H_
