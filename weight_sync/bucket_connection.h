// One reader of the bucket server: the state machine from hello to the last bucket, over a
// non-blocking socket. For bucket_server.cc; single-threaded.
#ifndef MILLRACE_WEIGHT_SYNC_BUCKET_CONNECTION_H_
#define MILLRACE_WEIGHT_SYNC_BUCKET_CONNECTION_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "weight_sync/bucket_server.h"
#include "weight_sync/bucket_stream.h"
#include "weight_sync/socket_io.h"

namespace millrace {

class BucketConnection {
 public:
  struct Found {
    std::shared_ptr<VersionBytes> bytes;  // null: not here
    bool gone = false;                    // it has been here; waiting for it is no use
  };
  using Find = std::function<Found(int64_t version)>;
  // `options` and `find` must outlive it. `same_host`: over a Unix socket; the memfd is passed and
  // replies carry no bytes.
  BucketConnection(Fd fd, bool same_host, const BucketServer::Options* options, absl::Time now);

  int fd() const { return fd_.get(); }
  bool closed() const { return !fd_.valid(); }
  // What to poll() for.
  short events() const;
  // When Advance() must be called even if nothing happens.
  absl::Time next_deadline() const;
  // Reads, decides, writes: as far as it goes without blocking. Returns payload bytes sent.
  uint64_t Advance(short revents, absl::Time now, const Find& find);

 private:
  enum class State { kHello, kWaitVersion, kServing, kClosing };
  struct Wanted {
    uint32_t index;
    absl::Time deadline;
  };

  void Read(absl::Time now);
  void ReadHello(absl::Time now);
  void AwaitVersion(absl::Time now, const Find& find);
  void ReadRequests(absl::Time now);
  void NextReply(absl::Time now);
  uint64_t Write(absl::Time now);
  bool FlushOut(absl::Time now);  // false when the socket is full or broken
  bool SendFd();
  void Refuse(StreamStatus status);
  void CheckTimeouts(absl::Time now);
  void Close() { fd_.Reset(); }
  bool writing() const { return out_at_ < out_.size() || body_left_ > 0; }

  Fd fd_;
  const bool same_host_;
  const BucketServer::Options* const options_;
  State state_ = State::kHello;
  StreamHello hello_;
  std::shared_ptr<VersionBytes> version_;
  absl::Time version_deadline_ = absl::InfiniteFuture();
  std::deque<Wanted> wanted_;
  std::string in_;
  std::string out_;
  size_t out_at_ = 0;
  bool fd_due_ = false;  // the memfd goes with the next byte of out_
  uint64_t body_at_ = 0;
  uint64_t body_left_ = 0;
  absl::Time last_activity_;
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_BUCKET_CONNECTION_H_
