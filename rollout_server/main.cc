// millrace-rollout: samples and verifies groups for the buffer, with the weights the learner
// publishes.
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "buffer/buffer_client.h"
#include "common/grpc_util.h"
#include "common/net_util.h"
#include "common/process.h"
#include "common/status_macros.h"
#include "environments/run_task.h"
#include "model/run_model.h"
#include "model/torch_status.h"
#include "model/transformer.h"
#include "rollout_server/engine.h"
#include "rollout_server/lease_loop.h"
#include "rollout_server/rollout_service.h"
#include "rollout_server/weight_swap.h"
#include "spdlog/spdlog.h"
#include "weight_sync/subscriber.h"

namespace millrace {
namespace {

constexpr absl::Duration kDrainOnStop = absl::Seconds(5);
constexpr absl::Duration kLeaseRetry = absl::Seconds(2);
constexpr absl::Duration kPushRetry = absl::Seconds(600);
constexpr absl::Duration kLastEvaluations = absl::Seconds(60);

// What /healthz asks. The HTTP server outlives the parts, so they are unhooked before they go.
class HealthHook {
 public:
  void Set(const LeaseLoop* loop, const Subscriber* subscriber) {
    absl::MutexLock lock(&mu_);
    loop_ = loop;
    subscriber_ = subscriber;
  }
  absl::Status Check() {
    absl::MutexLock lock(&mu_);
    if (loop_ == nullptr) return absl::UnavailableError("stopping");
    MR_RETURN_IF_ERROR(loop_->health());
    return subscriber_->health();
  }

 private:
  absl::Mutex mu_;
  const LeaseLoop* loop_ ABSL_GUARDED_BY(mu_) = nullptr;
  const Subscriber* subscriber_ ABSL_GUARDED_BY(mu_) = nullptr;
};

struct Addresses {
  std::string buffer, sync;
};

absl::StatusOr<Addresses> FindAddresses(const Role& role) {
  Addresses a;
  a.buffer = role.flags.buffer.empty() ? role.config.buffer.address : role.flags.buffer;
  a.sync = role.flags.sync.empty() ? role.config.weight_sync.address : role.flags.sync;
  if (a.buffer.empty()) {
    return absl::InvalidArgumentError("no buffer: give --buffer HOST:PORT or set buffer.address");
  }
  if (a.sync.empty()) {
    return absl::InvalidArgumentError(
        "no weight sync service: give --sync HOST:PORT or set weight_sync.address");
  }
  return a;
}

absl::StatusOr<SwapMode> ParseSwapMode(const std::string& text) {
  if (text == "recompute") return SwapMode::kRecompute;
  if (text == "in_place") return SwapMode::kInPlace;
  if (text == "drain") return SwapMode::kDrain;
  return absl::InvalidArgumentError(
      absl::StrCat("rollout.swap_mode is \"", text, "\"; valid: recompute, in_place, drain"));
}

absl::StatusOr<std::unique_ptr<Engine>> StartEngine(const Role& role, const ModelConfig& model) {
  const RunConfig::Rollout& config = role.config.rollout;
  MR_ASSIGN_OR_RETURN(
      const at::Device device,
      CatchTorch("rollout.devices or model.device", [&]() -> absl::StatusOr<at::Device> {
        return at::Device(RolloutDevice(role.config, role.flags.name));
      }));
  // No values: the learner publishes version 0 before anything is sampled.
  MR_ASSIGN_OR_RETURN(auto transformer, Transformer::Allocate(model, device));
  MR_ASSIGN_OR_RETURN(const ComputeType compute,
                      ParseComputeType(role.config.model.compute_dtype, device.is_cpu()));
  transformer->set_compute_type(compute);
  spdlog::info("rollout: matrix products on {} in {}", device.str(), ComputeTypeName(compute));
  Engine::Options options;
  options.max_batch = config.max_batch;
  options.kv_tokens = config.kv_tokens;
  options.threads = static_cast<int>(config.threads);
  MR_ASSIGN_OR_RETURN(options.swap_mode, ParseSwapMode(config.swap_mode));
  return Engine::Start(std::move(transformer), options, role.metrics.get());
}

LeaseLoop::Options LoopOptions(const Role& role, const std::vector<int32_t>& stop_ids) {
  const RunConfig::Rollout& config = role.config.rollout;
  LeaseLoop::Options options;
  options.run = role.config.run.name;
  options.server = role.flags.name;
  options.sampling.temperature = static_cast<float>(config.temperature);
  options.sampling.top_k = static_cast<int32_t>(config.top_k);
  options.sampling.top_p = static_cast<float>(config.top_p);
  options.max_new_tokens = static_cast<int32_t>(config.max_new_tokens);
  options.max_prompt_tokens = config.max_prompt_tokens;
  options.stop_ids = stop_ids;
  options.max_unfinished = config.max_batch;
  options.group_size = config.group_size;
  options.lease_length = absl::Seconds(role.config.buffer.lease_seconds);
  return options;
}

Subscriber::Options SyncOptions(const Role& role, const std::string& sync,
                                const std::string& control_address) {
  Subscriber::Options options;
  options.run = role.config.run.name;
  options.member = role.flags.name;
  options.publisher = sync;
  options.control_address = control_address;
  options.bucket_listen = AnyPortOf(role.flags.listen);
  options.advertise = role.flags.advertise.empty() ? HostName() : role.flags.advertise;
  options.token = role.config.weight_sync.token;
  options.same_host = role.config.weight_sync.transport == "auto";
  options.activate_deadline = absl::Seconds(role.config.weight_sync.activate_seconds);
  return options;
}

// Leases and samples until the run is finished, the process is told to stop, or the learner has
// been silent for too long; then gives back what is left.
absl::Status Work(Role& role, LeaseLoop* loop, Subscriber* subscriber, RolloutService* service) {
  absl::StatusOr<LeaseLoop::End> end = loop->Run([&]() -> absl::StatusOr<bool> {
    if (role.stopping() || subscriber->finished()) return true;
    MR_RETURN_IF_ERROR(subscriber->health());
    return false;
  });
  const bool finished = end.ok() && (*end == LeaseLoop::End::kFinished || subscriber->finished());
  if (!finished) {
    const uint32_t left = loop->Drain(end.ok() ? kDrainOnStop : absl::ZeroDuration(), StopHurried);
    spdlog::info("rollout: stopped; {} unfinished groups given back", left);
    return end.status();
  }
  // The buffer may know of the end before the learner's last evaluation is through.
  const absl::Time deadline = Clock::Real()->Now() + kLastEvaluations;
  while (service->running_calls() > 0 && Clock::Real()->Now() < deadline) {
    if (role.WaitForStop(absl::Milliseconds(100))) break;
  }
  spdlog::info("rollout: the run is finished");
  return absl::OkStatus();
}

absl::Status RunRollout(Role& role) {
  MR_ASSIGN_OR_RETURN(const Addresses addresses, FindAddresses(role));
  MR_ASSIGN_OR_RETURN(const RunModel model, LoadRunModel(role.config.model));
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<Task> task, MakeRunTask(role.config));
  const std::vector<int32_t> stop_ids = StopIds(*model.tokenizer, model.config.eos_ids);

  MR_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, StartEngine(role, model.config));
  const std::unique_ptr<SampleEngine> sampler = MakeSampleEngine(engine.get());
  WeightSwap swap(model.config, MakeEngineSwap(engine.get()), role.metrics.get());
  const std::string run = role.config.run.name;
  BufferClient leases({addresses.buffer, run, role.flags.name, kLeaseRetry,
                       static_cast<uint64_t>(absl::ToUnixMicros(Clock::Real()->Now()))});
  BufferClient pushes({addresses.buffer, run, role.flags.name, kPushRetry});
  const std::unique_ptr<LeaseBuffer> buffer = MakeLeaseBuffer(&leases, &pushes);
  LeaseLoop loop(LoopOptions(role, stop_ids), {buffer.get(), sampler.get(), &swap, task.get(),
                                               model.tokenizer.get(), role.metrics.get()});
  RolloutService::Options service_options;
  service_options.server = role.flags.name;
  service_options.max_new_tokens = static_cast<int32_t>(role.config.rollout.max_new_tokens);
  service_options.max_prompt_tokens = role.config.rollout.max_prompt_tokens;
  service_options.stop_ids = stop_ids;
  RolloutService service(service_options, {sampler.get(), &swap, task.get(), model.tokenizer.get(),
                                           &loop, role.metrics.get()});

  MR_ASSIGN_OR_RETURN(RunningServer server, StartGrpcServer(role.flags.listen, {&service}));
  const std::string host = role.flags.advertise.empty() ? HostName() : role.flags.advertise;
  const std::string address = JoinHostPort(host, server.port);
  MR_ASSIGN_OR_RETURN(
      std::unique_ptr<Subscriber> subscriber,
      Subscriber::Start(SyncOptions(role, addresses.sync, address), &swap, role.metrics.get()));
  auto health = std::make_shared<HealthHook>();
  health->Set(&loop, subscriber.get());
  absl::Status status = role.Announce(address, [health] { return health->Check(); });
  if (status.ok()) {
    role.Event("rollout_started", absl::StrCat("{\"address\":\"", address, "\"}"));
    status = Work(role, &loop, subscriber.get(), &service);
    role.Event("rollout_stopped");
  }
  health->Set(nullptr, nullptr);
  // Leaves weight sync first, so that no new evaluation is sent here, then ends the running ones.
  subscriber.reset();
  server.server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  return status;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::RunRole(argc, argv, "rollout", millrace::RunRollout);
}
