// millrace-learner: trains on what the buffer hands out and publishes the weights.
#include <ATen/Parallel.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "buffer/buffer_client.h"
#include "common/net_util.h"
#include "common/process.h"
#include "common/status_macros.h"
#include "learner/evaluation_client.h"
#include "learner/loop.h"
#include "nlohmann/json.hpp"
#include "weight_sync/publisher.h"

namespace millrace {
namespace {

absl::StatusOr<std::unique_ptr<Publisher>> StartPublisher(Role& role) {
  const RunConfig::WeightSync& sync = role.config.weight_sync;
  Publisher::Options options;
  options.run = role.config.run.name;
  options.listen = role.flags.listen;
  options.bucket_listen = AnyPortOf(role.flags.listen);
  options.advertise = role.flags.advertise.empty() ? HostName() : role.flags.advertise;
  options.token = sync.token;
  options.same_host = sync.transport == "auto";
  options.bucket_bytes = sync.bucket_mib << 20;
  options.transfer_deadline = absl::Seconds(sync.transfer_seconds);
  options.heartbeat = absl::Seconds(sync.heartbeat_seconds);
  options.member_timeout = absl::Seconds(sync.member_timeout_seconds);
  return Publisher::Start(options, role.metrics.get());
}

std::unique_ptr<Evaluator> MakeEvaluator(Role& role, Publisher* publisher) {
  Evaluator::Options options;
  options.task = role.config.task.name;
  options.members = [publisher] { return publisher->Members(); };
  options.activate_wait = absl::Seconds(role.config.weight_sync.transfer_seconds);
  options.progress = [&role](const EvalRequest& request, int64_t done, int64_t total) {
    role.Event("eval_progress", nlohmann::json({{"kind", request.kind},
                                                {"mode", request.mode},
                                                {"step", request.step},
                                                {"done", done},
                                                {"total", total}})
                                    .dump());
  };
  return std::make_unique<Evaluator>(std::move(options));
}

LearnerPorts MakePorts(Role& role, BufferClient* buffer, Publisher* publisher,
                       Evaluator* evaluator) {
  LearnerPorts ports;
  ports.next_batch = [buffer](uint64_t step, int64_t version, absl::Duration wait) {
    return buffer->NextBatch(step, version, wait);
  };
  ports.commit = [buffer](uint64_t step, const std::string& checkpoint) {
    return buffer->Commit(step, checkpoint);
  };
  ports.rewind = [buffer](uint64_t step) { return buffer->Rewind(step); };
  ports.set_version = [buffer](int64_t version, bool finished) {
    return buffer->SetVersion(version, finished);
  };
  ports.stats = [buffer] { return buffer->Stats(); };
  ports.publish = [publisher](int64_t version, absl::Span<const NamedSpan> tensors) {
    return publisher->Publish(version, tensors);
  };
  ports.wait_activated = [publisher](int64_t version, int members, absl::Duration timeout) {
    return publisher->WaitActivated(version, members, timeout);
  };
  ports.finish = [publisher] { publisher->Finish(); };
  ports.evaluate = [evaluator](const EvalRequest& request) { return evaluator->Run(request); };
  ports.stopping = [&role] { return role.stopping(); };
  ports.event = [&role](const std::string& event, const std::string& fields) {
    role.Event(event, fields);
  };
  return ports;
}

absl::Status RunLearner(Role& role) {
  at::set_num_threads(ComputeThreads(role.config.learner.threads));
  const std::string buffer_address =
      role.flags.buffer.empty() ? role.config.buffer.address : role.flags.buffer;
  if (buffer_address.empty()) {
    return absl::InvalidArgumentError(
        "the learner needs the buffer's address: --buffer HOST:PORT or buffer.address");
  }
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Publisher> publisher, StartPublisher(role));
  MR_RETURN_IF_ERROR(role.Announce(publisher->control_address()));
  BufferClient::Options options;
  options.address = buffer_address;
  options.run = role.config.run.name;
  options.server = role.flags.name;
  BufferClient buffer(options);
  std::unique_ptr<Evaluator> evaluator = MakeEvaluator(role, publisher.get());
  LearnerLoop loop(role.config, role.run_dir, role.metrics.get(),
                   MakePorts(role, &buffer, publisher.get(), evaluator.get()));
  return loop.Run();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::RunRole(argc, argv, "learner", millrace::RunLearner);
}
