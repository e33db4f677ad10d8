#include "weight_sync/bucket_connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "weight_sync/secret.h"

namespace millrace {
namespace {

constexpr uint64_t kBytesPerTurn = 4 << 20;  // then the other connections have theirs
constexpr size_t kReadChunk = 4096;

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

BucketConnection::BucketConnection(Fd fd, bool same_host, const BucketServer::Options* options,
                                   absl::Time now)
    : fd_(std::move(fd)), same_host_(same_host), options_(options), last_activity_(now) {}

short BucketConnection::events() const {
  short events = 0;
  if (state_ != State::kClosing && wanted_.size() < kMaxRequestsAhead) events |= POLLIN;
  if (writing()) events |= POLLOUT;
  return events;
}

absl::Time BucketConnection::next_deadline() const {
  if (state_ == State::kHello) return last_activity_ + options_->hello_timeout;
  if (state_ == State::kWaitVersion) return version_deadline_;
  if (writing()) return last_activity_ + options_->stall_timeout;
  if (!wanted_.empty()) return wanted_.front().deadline;
  // A reader on the same host keeps its connection for as long as it keeps the mapping.
  return same_host_ ? absl::InfiniteFuture() : last_activity_ + options_->idle_timeout;
}

uint64_t BucketConnection::Advance(short revents, absl::Time now, const Find& find) {
  if ((revents & (POLLIN | POLLHUP | POLLERR)) != 0) Read(now);
  if (!closed() && state_ == State::kHello) ReadHello(now);
  if (!closed() && state_ == State::kWaitVersion) AwaitVersion(now, find);
  if (!closed() && state_ == State::kServing) ReadRequests(now);
  uint64_t sent = 0;
  while (!closed()) {
    if (state_ == State::kServing && !writing()) NextReply(now);
    // A reply that waits for its turn counts as being written, so that poll() brings us back.
    if (!writing() || sent >= kBytesPerTurn) break;
    sent += Write(now);
    if (writing()) break;
  }
  if (!closed() && state_ == State::kClosing && !writing()) Close();
  if (!closed()) CheckTimeouts(now);
  return sent;
}

void BucketConnection::Read(absl::Time now) {
  char chunk[kReadChunk];
  ssize_t got = recv(fd_.get(), chunk, sizeof(chunk), 0);
  if (got > 0) {
    in_.append(chunk, static_cast<size_t>(got));
    last_activity_ = state_ == State::kHello ? last_activity_ : now;
  } else if (got == 0 || !WouldBlock()) {
    Close();
  }
}

void BucketConnection::Refuse(StreamStatus status) {
  out_.append(EncodeHelloReply({status, 0}));
  state_ = State::kClosing;
}

void BucketConnection::ReadHello(absl::Time now) {
  if (in_.size() < kHelloHeadBytes) return;
  absl::StatusOr<size_t> size = HelloSize(in_);
  if (!size.ok()) return Refuse(StreamStatus::kMalformed);
  if (in_.size() < *size) return;
  hello_ = DecodeHello(in_);
  in_.erase(0, *size);
  if (!SameSecret(hello_.token, options_->token)) return Refuse(StreamStatus::kWrongToken);
  if (hello_.run != options_->run) return Refuse(StreamStatus::kWrongRun);
  state_ = State::kWaitVersion;
  version_deadline_ =
      now + std::min(absl::Milliseconds(int64_t{hello_.wait_ms}), options_->max_wait);
}

void BucketConnection::AwaitVersion(absl::Time now, const Find& find) {
  auto [version, gone] = find(hello_.version);
  if (version == nullptr || version->failed()) {
    if (gone || now >= version_deadline_) Refuse(StreamStatus::kNoVersion);
    return;
  }
  if (version->manifest().digest != hello_.manifest_digest) {
    return Refuse(StreamStatus::kMismatch);
  }
  version_ = std::move(version);
  state_ = State::kServing;
  last_activity_ = now;
  fd_due_ = same_host_;
  out_.append(EncodeHelloReply(
      {StreamStatus::kOk, static_cast<uint32_t>(version_->manifest().buckets.size())}));
}

void BucketConnection::ReadRequests(absl::Time now) {
  size_t at = 0;
  while (in_.size() - at >= kRequestBytes) {
    BucketRequest request = DecodeRequest(absl::string_view(in_).substr(at, kRequestBytes));
    at += kRequestBytes;
    if (request.index >= version_->manifest().buckets.size() ||
        wanted_.size() >= kMaxRequestsAhead) {
      if (writing()) return Close();
      out_ = EncodeReply({StreamStatus::kMalformed, request.index, 0, 0});
      out_at_ = 0;
      state_ = State::kClosing;
      break;
    }
    wanted_.push_back({request.index, now + std::min(absl::Milliseconds(int64_t{request.wait_ms}),
                                                     options_->max_wait)});
  }
  in_.erase(0, at);
}

void BucketConnection::NextReply(absl::Time now) {
  out_.clear();
  out_at_ = 0;
  if (wanted_.empty()) return;
  Wanted next = wanted_.front();
  BucketReply reply{StreamStatus::kOk, next.index, 0, 0};
  if (version_->ready() > next.index) {
    const BucketMeta& bucket = version_->manifest().buckets[next.index];
    reply.size = bucket.size;
    reply.digest = bucket.digest;
    body_at_ = bucket.offset;
    body_left_ = same_host_ ? 0 : bucket.size;
  } else if (version_->failed()) {
    reply.status = StreamStatus::kTransferLost;
  } else if (now >= next.deadline) {
    reply.status = StreamStatus::kNotYet;
  } else {
    return;
  }
  wanted_.pop_front();
  out_ = EncodeReply(reply);
}

bool BucketConnection::SendFd() {
  // A descriptor that can only read: the reader must not be able to change the version.
  Fd read_only(
      open(absl::StrCat("/proc/self/fd/", version_->buffer().fd()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!read_only.valid()) {
    Close();
    return false;
  }
  int passed = read_only.get();
  iovec part{out_.data() + out_at_, out_.size() - out_at_};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &passed, sizeof(passed));
  ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
  if (sent > 0) {
    fd_due_ = false;
    out_at_ += static_cast<size_t>(sent);
    return true;
  }
  if (!WouldBlock()) Close();
  return false;
}

bool BucketConnection::FlushOut(absl::Time now) {
  if (fd_due_ && !SendFd()) return false;
  while (out_at_ < out_.size()) {
    ssize_t sent = send(fd_.get(), out_.data() + out_at_, out_.size() - out_at_,
                        MSG_NOSIGNAL | (body_left_ > 0 ? MSG_MORE : 0));
    if (sent <= 0) {
      if (!WouldBlock()) Close();
      return false;
    }
    out_at_ += static_cast<size_t>(sent);
    last_activity_ = now;
  }
  return true;
}

uint64_t BucketConnection::Write(absl::Time now) {
  if (!FlushOut(now)) return 0;
  uint64_t sent_here = 0;
  while (body_left_ > 0 && sent_here < kBytesPerTurn) {
    off_t at = static_cast<off_t>(body_at_);
    ssize_t sent = sendfile(fd_.get(), version_->buffer().fd(), &at,
                            std::min<uint64_t>(body_left_, kBytesPerTurn - sent_here));
    if (sent <= 0) {
      if (sent == 0 || !WouldBlock()) Close();
      break;
    }
    body_at_ += static_cast<uint64_t>(sent);
    body_left_ -= static_cast<uint64_t>(sent);
    sent_here += static_cast<uint64_t>(sent);
    last_activity_ = now;
  }
  return sent_here;
}

void BucketConnection::CheckTimeouts(absl::Time now) {
  bool waiting_for_bucket = !writing() && !wanted_.empty();
  bool waiting_for_version = state_ == State::kWaitVersion;
  if (waiting_for_bucket || waiting_for_version) return;  // answered, not closed, when they run out
  if (now >= next_deadline()) Close();
}

}  // namespace millrace
