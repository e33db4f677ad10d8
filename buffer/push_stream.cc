#include "buffer/push_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "buffer/trajectory_proto.h"
#include "common/grpc_util.h"

namespace millrace {
namespace {

std::string NameOf(const v1::TrajectoryKey& key) {
  return absl::StrCat("group ", key.group_id(), " index ", key.index(), " attempt ", key.attempt());
}

// Errors that the same trajectory will meet again.
bool IsFinal(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
      return true;
    default:
      return false;
  }
}

}  // namespace

PushStream::PushStream(std::shared_ptr<grpc::Channel> channel, std::string address,
                       absl::Duration retry_for)
    : stub_(v1::Buffer::NewStub(std::move(channel))),
      address_(std::move(address)),
      retry_for_(retry_for) {
  thread_ = std::thread([this] { Run(); });
}

PushStream::~PushStream() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
  FailAll(absl::CancelledError("the client was closed before the push was confirmed"));
}

void PushStream::Push(const Trajectory& trajectory, BufferClient::PushCallback done) {
  auto request = std::make_shared<v1::PushRequest>();
  ToProto(trajectory, request->mutable_trajectory());
  const size_t bytes = request->ByteSizeLong();
  absl::Status refused;
  if (bytes > static_cast<size_t>(kMaxMessageBytes)) {
    refused = absl::ResourceExhaustedError(
        absl::StrCat("trajectory ", NameOf(request->trajectory().key()), " is a message of ", bytes,
                     " bytes, larger than max ", kMaxMessageBytes));
  } else {
    absl::MutexLock lock(&mu_);
    const auto has_room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return stopping_ || pending_.size() < kMaxUnconfirmed;
    };
    // Not without end: what is pending is confirmed or given up within retry_for.
    mu_.Await(absl::Condition(&has_room));
    ++pushed_;
    pending_.push_back({std::move(request), std::move(done), clock_->Now() + retry_for_});
    return;
  }
  done(refused, "");
}

absl::Status PushStream::Flush(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  const uint64_t target = pushed_;
  const auto answered = [this, target]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return answered_ >= target; };
  if (mu_.AwaitWithTimeout(absl::Condition(&answered), timeout)) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(target - answered_, " of ", target, " pushed trajectories are not confirmed by ",
                   "the buffer at ", address_, " after ", absl::FormatDuration(timeout)));
}

void PushStream::Run() {
  Backoff backoff({}, reinterpret_cast<uintptr_t>(this));
  for (;;) {
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &PushStream::HasWork));
      if (stopping_) return;
    }
    bool progress = false;
    const grpc::Status status = RunStream(&progress);
    if (progress) backoff.Reset();
    if (status.ok()) continue;
    const absl::Status why = FromGrpc(status, absl::StrCat("Push to the buffer at ", address_));
    if (IsFinal(status)) {
      FailAll(why);
    } else {
      GiveUp(why);
    }
    absl::MutexLock lock(&mu_);
    const auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; };
    if (mu_.AwaitWithTimeout(absl::Condition(&stopping), backoff.Next())) return;
  }
}

grpc::Status PushStream::RunStream(bool* progress) {
  grpc::ClientContext context;
  SetDeadline(&context, retry_for_);
  const std::unique_ptr<Stream> stream = stub_->Push(&context);
  {
    absl::MutexLock lock(&mu_);
    sent_ = 0;
    broken_ = false;
    progress_ = false;
  }
  std::thread reader([&] { ReadReplies(stream.get(), &context); });
  SendRequests(stream.get(), clock_->Now() + retry_for_ / 2);
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) context.TryCancel();
  }
  reader.join();
  grpc::Status status = stream->Finish();
  absl::MutexLock lock(&mu_);
  *progress = progress_;
  return status;
}

void PushStream::ReadReplies(Stream* stream, grpc::ClientContext* context) {
  v1::PushReply reply;
  while (stream->Read(&reply)) {
    if (OnReply(reply)) continue;
    context->TryCancel();
    break;
  }
  absl::MutexLock lock(&mu_);
  broken_ = true;
}

void PushStream::SendRequests(Stream* stream, absl::Time until) {
  while (const std::shared_ptr<const v1::PushRequest> request = NextToSend(until)) {
    if (!stream->Write(*request)) return;
  }
  stream->WritesDone();
}

std::shared_ptr<const v1::PushRequest> PushStream::NextToSend(absl::Time until) {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || broken_ || sent_ < pending_.size();
  };
  const bool in_time = mu_.AwaitWithTimeout(absl::Condition(&ready), until - clock_->Now());
  if (!in_time || stopping_ || broken_ || clock_->Now() >= until) return nullptr;
  return pending_[sent_++].request;
}

bool PushStream::OnReply(const v1::PushReply& reply) {
  Pending answered;
  {
    absl::MutexLock lock(&mu_);
    if (sent_ == 0) return false;  // an answer to nothing
    const v1::TrajectoryKey& key = pending_.front().request->trajectory().key();
    if (key.group_id() != reply.key().group_id() || key.index() != reply.key().index() ||
        key.attempt() != reply.key().attempt()) {
      return false;
    }
    answered = std::move(pending_.front());
    pending_.pop_front();
    --sent_;
    progress_ = true;
  }
  const PushOutcome outcome = reply.result() == v1::STORED      ? PushOutcome::kStored
                              : reply.result() == v1::DUPLICATE ? PushOutcome::kDuplicate
                                                                : PushOutcome::kRefused;
  if (answered.done) answered.done(outcome, reply.reason());
  absl::MutexLock lock(&mu_);
  ++answered_;
  return true;
}

void PushStream::GiveUp(const absl::Status& why) {
  for (;;) {
    Pending late;
    {
      absl::MutexLock lock(&mu_);
      if (pending_.empty() || clock_->Now() < pending_.front().give_up) return;
      late = std::move(pending_.front());
      pending_.pop_front();
    }
    if (late.done) {
      late.done(absl::Status(why.code(),
                             absl::StrCat("trajectory ", NameOf(late.request->trajectory().key()),
                                          " was not confirmed within ",
                                          absl::FormatDuration(retry_for_), ": ", why.message())),
                "");
    }
    absl::MutexLock lock(&mu_);
    ++answered_;
  }
}

void PushStream::FailAll(const absl::Status& why) {
  std::deque<Pending> all;
  {
    absl::MutexLock lock(&mu_);
    all.swap(pending_);
  }
  for (Pending& pending : all) {
    if (pending.done) pending.done(why, "");
  }
  absl::MutexLock lock(&mu_);
  answered_ += all.size();
}

}  // namespace millrace
