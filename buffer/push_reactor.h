// The server's end of one push stream: reads ahead while there is room, answers every message once
// and in order. Owns itself: it is gone when the call is over and the core has answered everything.
#ifndef MILLRACE_BUFFER_PUSH_REACTOR_H_
#define MILLRACE_BUFFER_PUSH_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "buffer/buffer_core.h"
#include "buffer/buffer_service.h"
#include "proto/buffer.pb.h"

namespace millrace {

class PushReactor final : public grpc::ServerBidiReactor<v1::PushRequest, v1::PushReply>,
                          public std::enable_shared_from_this<PushReactor> {
 public:
  // Starts reading.
  static PushReactor* Start(BufferCore* core, const BufferService::Options& options);

 private:
  struct Slot {
    bool answered = false;
    v1::PushReply reply;
    grpc::Status error;  // not OK: the stream ends with it instead of a reply
    size_t bytes = 0;
  };
  enum class Action { kNone, kRead, kWrite, kFinish };

  PushReactor(BufferCore* core, const BufferService::Options& options)
      : core_(core), options_(options) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void Handle();
  void Resolve(uint64_t number, absl::StatusOr<PushAnswer> answer);
  // Starts whatever can be started. gRPC operations are started by one thread at a time and outside
  // the lock, so none starts after Finish.
  void Drive();
  Action Decide() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  BufferCore* const core_;
  const BufferService::Options options_;
  std::shared_ptr<PushReactor> self_;  // until OnDone; callbacks of the core hold more

  v1::PushRequest request_;      // of the read in flight
  v1::PushReply writing_reply_;  // of the write in flight
  grpc::WriteOptions write_options_;

  absl::Mutex mu_;
  std::deque<Slot> slots_ ABSL_GUARDED_BY(mu_);  // unanswered messages, oldest first
  uint64_t first_ ABSL_GUARDED_BY(mu_) = 0;      // number of slots_.front()
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;        // of messages the core has not answered
  size_t unanswered_ ABSL_GUARDED_BY(mu_) = 0;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool reads_done_ ABSL_GUARDED_BY(mu_) = false;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;  // the client cannot be answered any more
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status final_ ABSL_GUARDED_BY(mu_);
  bool driving_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace millrace

#endif  // MILLRACE_BUFFER_PUSH_REACTOR_H_
