// The client's end of a push stream: sends without waiting, remembers what is not confirmed, and
// sends that again on a new stream when the old one breaks. Thread-safe.
#ifndef MILLRACE_BUFFER_PUSH_STREAM_H_
#define MILLRACE_BUFFER_PUSH_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "buffer/buffer_client.h"
#include "common/backoff.h"
#include "common/clock.h"
#include "proto/buffer.grpc.pb.h"

namespace millrace {

class PushStream {
 public:
  // Unconfirmed trajectories at most; Push blocks above.
  static constexpr size_t kMaxUnconfirmed = 256;

  // `retry_for`: a trajectory not confirmed after about this long is given up with an error.
  PushStream(std::shared_ptr<grpc::Channel> channel, std::string address, absl::Duration retry_for);
  // What is not confirmed by now is answered with CANCELLED.
  ~PushStream();

  void Push(const Trajectory& trajectory, BufferClient::PushCallback done);
  absl::Status Flush(absl::Duration timeout);

 private:
  struct Pending {
    std::shared_ptr<const v1::PushRequest> request;
    BufferClient::PushCallback done;
    absl::Time give_up;
  };
  using Stream = grpc::ClientReaderWriter<v1::PushRequest, v1::PushReply>;

  void Run();
  // One stream, from connecting to its end; its status. `*progress`: something was confirmed. A
  // stream is closed in good order at half of retry_for and cut off at retry_for, so that a server
  // that hangs is noticed.
  grpc::Status RunStream(bool* progress);
  void ReadReplies(Stream* stream, grpc::ClientContext* context);
  void SendRequests(Stream* stream, absl::Time until);
  // The next request to send, or nullptr when the stream is to end.
  std::shared_ptr<const v1::PushRequest> NextToSend(absl::Time until);
  bool OnReply(const v1::PushReply& reply);
  // Answers what has waited longer than retry_for.
  void GiveUp(const absl::Status& why);
  void FailAll(const absl::Status& why);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !pending_.empty(); }

  const std::unique_ptr<v1::Buffer::Stub> stub_;
  const std::string address_;
  const absl::Duration retry_for_;
  Clock* const clock_ = Clock::Real();

  absl::Mutex mu_;
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mu_);  // unconfirmed, oldest first
  size_t sent_ ABSL_GUARDED_BY(mu_) = 0;              // of pending_, on the present stream
  uint64_t pushed_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t answered_ ABSL_GUARDED_BY(mu_) = 0;  // after their callback has run
  bool broken_ ABSL_GUARDED_BY(mu_) = false;    // the present stream
  bool progress_ ABSL_GUARDED_BY(mu_) = false;  // the present stream has confirmed something
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_BUFFER_PUSH_STREAM_H_
