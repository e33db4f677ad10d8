// The Rollout service (proto/rollout.proto). Handlers run on gRPC's threads and block there; at
// most `max_calls` of Evaluate and Generate run at once, more are refused with RESOURCE_EXHAUSTED.
// Thread-safe.
#ifndef MILLRACE_ROLLOUT_SERVER_ROLLOUT_SERVICE_H_
#define MILLRACE_ROLLOUT_SERVER_ROLLOUT_SERVICE_H_

#include <atomic>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/metrics.h"
#include "environments/task.h"
#include "model/tokenizer.h"
#include "proto/rollout.grpc.pb.h"
#include "rollout_server/lease_loop.h"
#include "rollout_server/ports.h"

namespace millrace {

class RolloutService : public v1::Rollout::Service {
 public:
  struct Options {
    std::string server;  // this process's name
    int32_t max_new_tokens = 48;
    int64_t max_prompt_tokens = 512;
    std::vector<int32_t> stop_ids;
    int max_calls = 8;
    // A call none of whose samples ended for this long fails.
    absl::Duration sample_wait = absl::Seconds(120);
  };
  // Not owned; all must outlive the service.
  struct Parts {
    SampleEngine* engine = nullptr;
    VersionGate* versions = nullptr;
    const Task* task = nullptr;
    const Tokenizer* tokenizer = nullptr;
    LeaseLoop* loop = nullptr;
    Metrics* metrics = nullptr;
  };
  RolloutService(Options options, Parts parts);

  // Samples are pinned to the request's version (below 0: to the active one). FAILED_PRECONDITION
  // when a newer one is, or becomes, active; DEADLINE_EXCEEDED when it does not come in time.
  grpc::Status Evaluate(grpc::ServerContext* context, const v1::EvaluateRequest* request,
                        grpc::ServerWriter<v1::EvaluateResult>* writer) override;
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        v1::GenerateReply* reply) override;
  grpc::Status Status(grpc::ServerContext* context, const v1::RolloutStatusRequest* request,
                      v1::RolloutStatusReply* reply) override;
  grpc::Status Drain(grpc::ServerContext* context, const v1::DrainRequest* request,
                     v1::DrainReply* reply) override;

  // Calls of Evaluate and Generate that are running.
  int running_calls() const { return running_calls_.load(); }

 private:
  const Options options_;
  const Parts parts_;
  std::atomic<int> running_calls_{0};
  Counter& evaluated_;
};

}  // namespace millrace

#endif  // MILLRACE_ROLLOUT_SERVER_ROLLOUT_SERVICE_H_
