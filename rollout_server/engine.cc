#include "rollout_server/engine.h"

#include <ATen/Parallel.h>

#include <deque>
#include <limits>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "rollout_server/engine_core.h"

namespace millrace {
namespace {

struct WeightChange {
  int64_t version = 0;
  std::function<absl::Status(EngineCore&)> apply;
  bool started = false;
  bool done = false;
  absl::Status status;
};

// What callers have left for the loop.
struct Inbox {
  std::vector<std::pair<uint64_t, EngineRequest>> requests;
  std::vector<uint64_t> cancelled;
  bool empty() const { return requests.empty() && cancelled.empty(); }
};

}  // namespace

struct Engine::Impl {
  Options options;
  std::unique_ptr<EngineCore> core;  // the loop's alone, but for what is thread-safe there

  absl::Mutex mu;
  Inbox inbox ABSL_GUARDED_BY(mu);
  std::deque<WeightChange*> changes ABSL_GUARDED_BY(mu);  // owned by the callers that wait
  uint64_t next_request ABSL_GUARDED_BY(mu) = 1;
  Stats stats ABSL_GUARDED_BY(mu);
  bool stop ABSL_GUARDED_BY(mu) = false;
  int64_t swappers ABSL_GUARDED_BY(mu) = 0;  // threads inside SwapWeights
  bool idle ABSL_GUARDED_BY(mu) = false;     // the loop has nothing to run
  std::thread thread;

  void Loop();
  // True when the loop is to end. Hands over the inbox and, when it may run now, a weight change.
  bool Collect(Inbox* mail, WeightChange** change) ABSL_LOCKS_EXCLUDED(mu);
  void FinishChange(WeightChange* change, absl::Status status) ABSL_LOCKS_EXCLUDED(mu);
  void ShareStats() ABSL_LOCKS_EXCLUDED(mu);
  void End() ABSL_LOCKS_EXCLUDED(mu);
  // Has the loop run `change`, which may use memory of the caller.
  absl::Status Run(WeightChange change, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu);
};

bool Engine::Impl::Collect(Inbox* mail, WeightChange** change) {
  const bool drained = core->running() == 0 || options.swap_mode != SwapMode::kDrain;
  absl::MutexLock lock(&mu);
  const auto work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return stop || !idle || !inbox.empty() || !changes.empty();
  };
  // Idle engines have nothing to time out on; whoever ends the engine sets `stop`.
  mu.Await(absl::Condition(&work));
  std::swap(*mail, inbox);
  if (!changes.empty() && drained && !stop) {
    *change = changes.front();
    changes.pop_front();
    (*change)->started = true;
  }
  return stop;
}

void Engine::Impl::Loop() {
  for (;;) {
    Inbox mail;
    WeightChange* change = nullptr;
    const bool end = Collect(&mail, &change);
    for (auto& [id, request] : mail.requests) core->Add(id, std::move(request));
    for (uint64_t id : mail.cancelled) core->Cancel(id);
    if (end) break;
    if (change != nullptr) {
      FinishChange(change, change->apply(*core));
    }
    bool draining = false;
    {
      absl::MutexLock lock(&mu);
      draining = options.swap_mode == SwapMode::kDrain && !changes.empty();
    }
    const bool ran = core->Step(/*admit=*/!draining);
    if (!ran) core->Idle();
    ShareStats();
    absl::MutexLock lock(&mu);
    idle = !ran;
  }
  End();
}

void Engine::Impl::FinishChange(WeightChange* change, absl::Status status) {
  ShareStats();  // before the caller sees the change done
  absl::MutexLock lock(&mu);
  change->status = std::move(status);
  change->done = true;
}

void Engine::Impl::ShareStats() {
  const Stats now = core->stats();
  absl::MutexLock lock(&mu);
  stats = now;
  for (const auto& [id, request] : inbox.requests) {
    stats.waiting += static_cast<int64_t>(request.indices.size());
  }
}

void Engine::Impl::End() {
  core->CancelAll();
  ShareStats();
  absl::MutexLock lock(&mu);
  for (WeightChange* change : changes) {
    change->status = absl::CancelledError(
        absl::StrCat("engine stopped before version ", change->version, " was activated"));
    change->done = true;
  }
  changes.clear();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Start(std::unique_ptr<Transformer> model,
                                                      Options options, Metrics* metrics) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  MR_ASSIGN_OR_RETURN(impl->core, EngineCore::Create(std::move(model), options, metrics));
  at::set_num_threads(options.threads);
  impl->ShareStats();
  Impl* loop = impl.get();
  impl->thread = std::thread([loop] { loop->Loop(); });
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() {
  {
    absl::MutexLock lock(&impl_->mu);
    impl_->stop = true;
  }
  impl_->thread.join();
  // The loop has answered every change; whoever waited for one still holds the mutex on the way
  // out.
  absl::MutexLock lock(&impl_->mu);
  const auto alone = [this]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->mu) { return impl_->swappers == 0; };
  impl_->mu.Await(absl::Condition(&alone));
}

absl::StatusOr<uint64_t> Engine::Submit(EngineRequest request) {
  MR_RETURN_IF_ERROR(impl_->core->Validate(request));
  absl::MutexLock lock(&impl_->mu);
  if (impl_->stop) return absl::CancelledError("engine is stopping");
  const uint64_t id = impl_->next_request++;
  impl_->stats.waiting += static_cast<int64_t>(request.indices.size());
  impl_->inbox.requests.emplace_back(id, std::move(request));
  return id;
}

void Engine::Cancel(uint64_t request) {
  absl::MutexLock lock(&impl_->mu);
  impl_->inbox.cancelled.push_back(request);
}

absl::Status Engine::Impl::Run(WeightChange change, absl::Time deadline) {
  const absl::Time begin = Clock::Real()->Now();
  absl::MutexLock lock(&mu);
  if (stop) return absl::CancelledError("engine is stopping");
  ++swappers;
  const absl::Cleanup leave = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { --swappers; };
  changes.push_back(&change);
  const auto taken = [&change] { return change.started || change.done; };
  if (!mu.AwaitWithDeadline(absl::Condition(&taken), deadline)) {
    for (auto it = changes.begin(); it != changes.end(); ++it) {
      if (*it != &change) continue;
      changes.erase(it);
      break;
    }
    return absl::DeadlineExceededError(
        absl::StrCat("version ", change.version, " was not activated within ",
                     absl::FormatDuration(Clock::Real()->Now() - begin),
                     ": the decode loop did not come to it, ", stats.running,
                     " samples running, version ", stats.version, " active"));
  }
  // It runs and uses the caller's memory: its end must be waited for.
  mu.Await(absl::Condition(&change.done));
  return change.status;
}

absl::Status Engine::SwapWeights(int64_t version, std::function<absl::Status(Transformer&)> write,
                                 absl::Time deadline) {
  WeightChange change{version};
  change.apply = [&](EngineCore& core) { return core.Swap(version, write); };
  return impl_->Run(std::move(change), deadline);
}

absl::Status Engine::SwapWeights(int64_t version, absl::Span<const ParameterBytes> parameters,
                                 absl::Time deadline) {
  WeightChange change{version};
  change.apply = [&](EngineCore& core) { return core.Swap(version, parameters); };
  return impl_->Run(std::move(change), deadline);
}

void Engine::SetVersion(int64_t version) {
  WeightChange change{version};
  change.apply = [version](EngineCore& core) {
    core.SetVersion(version);
    return absl::OkStatus();
  };
  impl_->Run(std::move(change), absl::InfiniteFuture()).IgnoreError();
}

int64_t Engine::version() const {
  absl::MutexLock lock(&impl_->mu);
  return impl_->stats.version;
}

Engine::Stats Engine::stats() const {
  absl::MutexLock lock(&impl_->mu);
  Stats now = impl_->stats;
  now.waiting_swaps = static_cast<int64_t>(impl_->changes.size());
  return now;
}

const ModelConfig& Engine::model_config() const { return impl_->core->model_config(); }

}  // namespace millrace
