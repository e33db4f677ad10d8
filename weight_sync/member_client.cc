#include "weight_sync/member_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grpc_util.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);

}  // namespace

MemberClient::MemberClient(std::string address)
    : address_(std::move(address)), stub_(v1::WeightSync::NewStub(MakeChannel(address_))) {}

absl::Status MemberClient::Begin(grpc::ClientContext* context, absl::Duration timeout) {
  SetDeadline(context, timeout);
  absl::MutexLock lock(&mu_);
  if (cancelled_) return absl::CancelledError("the subscriber is stopping");
  calls_.insert(context);
  return absl::OkStatus();
}

void MemberClient::End(grpc::ClientContext* context) {
  absl::MutexLock lock(&mu_);
  calls_.erase(context);
}

void MemberClient::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  for (grpc::ClientContext* call : calls_) call->TryCancel();
}

absl::StatusOr<v1::JoinReply> MemberClient::Join(const v1::JoinRequest& request) {
  grpc::ClientContext context;
  v1::JoinReply reply;
  MR_RETURN_IF_ERROR(Begin(&context, kCallTimeout));
  grpc::Status status = stub_->Join(&context, request, &reply);
  End(&context);
  MR_RETURN_IF_ERROR(FromGrpc(status, absl::StrCat("Join at the learner ", address_)));
  return reply;
}

absl::StatusOr<v1::PollReply> MemberClient::Poll(const v1::PollRequest& request) {
  grpc::ClientContext context;
  v1::PollReply reply;
  MR_RETURN_IF_ERROR(
      Begin(&context, absl::Milliseconds(int64_t{request.wait_ms()}) + kCallTimeout));
  grpc::Status status = stub_->Poll(&context, request, &reply);
  End(&context);
  MR_RETURN_IF_ERROR(FromGrpc(status, absl::StrCat("Poll at the learner ", address_)));
  return reply;
}

absl::Status MemberClient::Report(const v1::ReportRequest& request) {
  grpc::ClientContext context;
  v1::ReportReply reply;
  MR_RETURN_IF_ERROR(Begin(&context, kCallTimeout));
  grpc::Status status = stub_->Report(&context, request, &reply);
  End(&context);
  return FromGrpc(status, absl::StrCat("Report at the learner ", address_));
}

absl::Status MemberClient::Leave(uint64_t member_id) {
  grpc::ClientContext context;
  SetDeadline(&context, kLeaveTimeout);
  v1::LeaveRequest request;
  request.set_member_id(member_id);
  v1::LeaveReply reply;
  return FromGrpc(stub_->Leave(&context, request, &reply),
                  absl::StrCat("Leave at the learner ", address_));
}

}  // namespace millrace
