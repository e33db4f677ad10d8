// Takes a version from the learner on the same host by mapping its memory: no byte is moved, only
// digested. The connection stays open for as long as the mapping is used, which keeps the learner
// from using the memory again. Thread-safe as Transport says.
#ifndef MILLRACE_WEIGHT_SYNC_SAME_HOST_TRANSPORT_H_
#define MILLRACE_WEIGHT_SYNC_SAME_HOST_TRANSPORT_H_

#include <atomic>
#include <string>

#include "weight_sync/bucket_reader.h"
#include "weight_sync/transport.h"

namespace millrace {

class SameHostTransport : public Transport {
 public:
  struct Options {
    std::string run;
    std::string token;
    absl::Duration patience = absl::Seconds(3);
  };
  explicit SameHostTransport(Options options) : options_(std::move(options)) {}

  std::string name() const override { return "same_host"; }
  absl::Status Pull(const PullRequest& request, PullStats* stats) override;
  void Abort() override;

 private:
  const Options options_;
  std::atomic<bool> aborted_{false};
  WakeFd abort_;
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_SAME_HOST_TRANSPORT_H_
