#include "buffer/push_reactor.h"

#include <utility>

#include "buffer/trajectory_proto.h"
#include "common/grpc_util.h"

namespace millrace {

PushReactor* PushReactor::Start(BufferCore* core, const BufferService::Options& options) {
  std::shared_ptr<PushReactor> reactor(new PushReactor(core, options));
  reactor->self_ = reactor;
  reactor->Drive();
  return reactor.get();
}

void PushReactor::OnDone() {
  const std::shared_ptr<PushReactor> last = std::move(self_);  // may end the object on return
}

void PushReactor::OnCancel() {
  {
    absl::MutexLock lock(&mu_);
    gone_ = true;
  }
  Drive();
}

void PushReactor::OnReadDone(bool ok) {
  if (ok) Handle();
  {
    absl::MutexLock lock(&mu_);
    reading_ = false;
    if (!ok) reads_done_ = true;
  }
  Drive();
}

void PushReactor::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) gone_ = true;
  }
  Drive();
}

void PushReactor::Handle() {
  uint64_t number = 0;
  {
    absl::MutexLock lock(&mu_);
    number = first_ + slots_.size();
    Slot slot;
    slot.bytes = request_.ByteSizeLong();
    *slot.reply.mutable_key() = request_.trajectory().key();
    bytes_ += slot.bytes;
    ++unanswered_;
    slots_.push_back(std::move(slot));
  }
  absl::StatusOr<Trajectory> trajectory = FromProto(request_.trajectory());
  if (!trajectory.ok()) {
    Resolve(number, PushAnswer{PushOutcome::kRefused, std::string(trajectory.status().message())});
    return;
  }
  core_->Push(*std::move(trajectory),
              [self = shared_from_this(), number](absl::StatusOr<PushAnswer> answer) {
                self->Resolve(number, std::move(answer));
              });
}

void PushReactor::Resolve(uint64_t number, absl::StatusOr<PushAnswer> answer) {
  {
    absl::MutexLock lock(&mu_);
    Slot& slot = slots_[number - first_];
    slot.answered = true;
    bytes_ -= slot.bytes;
    --unanswered_;
    if (!answer.ok()) {
      slot.error = ToGrpc(answer.status());
    } else {
      slot.reply.set_reason(answer->reason);
      slot.reply.set_result(answer->outcome == PushOutcome::kStored      ? v1::STORED
                            : answer->outcome == PushOutcome::kDuplicate ? v1::DUPLICATE
                                                                         : v1::REFUSED);
    }
  }
  Drive();
}

bool PushReactor::HasRoom() const {
  return unanswered_ == 0 ||
         (bytes_ < options_.max_stream_bytes && core_->queued_bytes() < options_.max_queued_bytes);
}

PushReactor::Action PushReactor::Decide() {
  if (finished_) return Action::kNone;
  if (!writing_) {
    const bool can_write = !slots_.empty() && slots_.front().answered;
    if (gone_) {
      final_ = grpc::Status(grpc::StatusCode::CANCELLED, "the client went away");
    } else if (can_write && !slots_.front().error.ok()) {
      final_ = slots_.front().error;
    } else if (can_write) {
      writing_reply_ = std::move(slots_.front().reply);
      slots_.pop_front();
      ++first_;
      writing_ = true;
      // Small answers that are ready together go out together.
      write_options_ = grpc::WriteOptions();
      if (!slots_.empty() && slots_.front().answered && slots_.front().error.ok()) {
        write_options_.set_buffer_hint();
      }
      return Action::kWrite;
    }
    if (gone_ || can_write || (reads_done_ && slots_.empty())) {
      finished_ = true;
      return Action::kFinish;
    }
  }
  if (!reading_ && !reads_done_ && !gone_ && HasRoom()) {
    reading_ = true;
    return Action::kRead;
  }
  return Action::kNone;
}

void PushReactor::Drive() {
  // Whoever calls holds the reactor until Finish; after that, this does.
  const std::shared_ptr<PushReactor> keep = shared_from_this();
  for (bool driving = false;; driving = true) {
    Action action;
    grpc::Status final_status;
    {
      absl::MutexLock lock(&mu_);
      if (!driving && driving_) return;  // that thread decides again after what it does now
      action = Decide();
      driving_ = action != Action::kNone;
      if (!driving_) return;
      final_status = final_;
    }
    switch (action) {
      case Action::kRead:
        StartRead(&request_);
        break;
      case Action::kWrite:
        StartWrite(&writing_reply_, write_options_);
        break;
      case Action::kFinish:
        Finish(final_status);
        break;
      case Action::kNone:
        break;
    }
  }
}

}  // namespace millrace
