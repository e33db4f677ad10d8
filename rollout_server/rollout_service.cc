#include "rollout_server/rollout_service.h"

#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/grpc_util.h"
#include "common/status_macros.h"
#include "rollout_server/sample_builder.h"

namespace millrace {
namespace {

constexpr absl::Duration kSlice = absl::Milliseconds(100);

// Samples that ended, from the engine's thread to the handler's. Shared with callbacks that may
// come after the handler is gone.
class SampleQueue {
 public:
  struct Item {
    size_t request = 0;  // which of the call's requests
    GeneratedSample sample;
  };
  void Put(Item item) {
    absl::MutexLock lock(&mu_);
    items_.push_back(std::move(item));
  }
  bool Take(absl::Duration timeout, Item* item) {
    absl::MutexLock lock(&mu_);
    const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !items_.empty(); };
    Clock* clock = Clock::Real();
    if (!clock->AwaitWithDeadline(&mu_, absl::Condition(&ready), clock->Now() + timeout)) {
      return false;
    }
    *item = std::move(items_.front());
    items_.pop_front();
    return true;
  }

 private:
  absl::Mutex mu_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mu_);
};

// The engine requests of one call; cancels at its end what has not ended.
class CallRequests {
 public:
  CallRequests(grpc::ServerContext* context, SampleEngine* engine, absl::Duration sample_wait)
      : context_(context), engine_(engine), sample_wait_(sample_wait) {}
  ~CallRequests() {
    for (const auto& [id, left] : left_) {
      if (left > 0) engine_->Cancel(id);
    }
  }

  absl::Status Submit(EngineRequest request) {
    const size_t number = ids_.size();
    const size_t samples = request.indices.size();
    request.on_sample = [queue = queue_, number](GeneratedSample sample) {
      queue->Put({number, std::move(sample)});
    };
    MR_ASSIGN_OR_RETURN(const uint64_t id, engine_->Submit(std::move(request)));
    ids_.push_back(id);
    left_[id] += samples;
    expected_ += samples;
    return absl::OkStatus();
  }

  bool done() const { return taken_ == expected_; }

  // The next sample that ended; request numbers count the Submit calls from 0.
  absl::StatusOr<SampleQueue::Item> Next() {
    Clock* clock = Clock::Real();
    const absl::Time deadline = clock->Now() + sample_wait_;
    SampleQueue::Item item;
    while (!queue_->Take(kSlice, &item)) {
      if (context_->IsCancelled()) return absl::CancelledError("the caller gave up");
      if (clock->Now() < deadline) continue;
      const Engine::Stats stats = engine_->stats();
      return absl::DeadlineExceededError(absl::StrCat(
          "waited ", absl::FormatDuration(sample_wait_), " for one of ", expected_ - taken_, " of ",
          expected_, " samples to end; the engine runs ", stats.running, ", queues ", stats.waiting,
          ", made ", stats.generated_tokens, " tokens so far"));
    }
    ++taken_;
    --left_[ids_[item.request]];
    return item;
  }

 private:
  grpc::ServerContext* const context_;
  SampleEngine* const engine_;
  const absl::Duration sample_wait_;
  const std::shared_ptr<SampleQueue> queue_ = std::make_shared<SampleQueue>();
  std::vector<uint64_t> ids_;
  std::map<uint64_t, size_t> left_;  // samples that have not ended, by engine request
  size_t expected_ = 0, taken_ = 0;
};

// Counts a call in for as long as it lives; ok() is false when there are too many.
class CallSlot {
 public:
  CallSlot(std::atomic<int>* running, int limit) : running_(running), limit_(limit) {
    count_ = running_->fetch_add(1) + 1;
  }
  ~CallSlot() { running_->fetch_sub(1); }
  absl::Status status() const {
    if (count_ <= limit_) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("this server already runs ", limit_, " calls; try again later"));
  }

 private:
  std::atomic<int>* const running_;
  const int limit_;
  int count_ = 0;
};

SamplingParams ParamsOf(const v1::Sampling& sampling) {
  SamplingParams params;
  params.temperature = sampling.temperature();
  params.top_k = static_cast<int32_t>(sampling.top_k());
  params.top_p = sampling.top_p() > 0 ? sampling.top_p() : 1;
  return params;
}

std::vector<uint32_t> Indices(uint32_t samples) {
  std::vector<uint32_t> indices(samples);
  for (uint32_t i = 0; i < samples; ++i) indices[i] = i;
  return indices;
}

// One Evaluate call.
class Evaluation {
 public:
  Evaluation(const RolloutService::Options& options, const RolloutService::Parts& parts,
             grpc::ServerContext* context)
      : options_(options),
        parts_(parts),
        context_(context),
        requests_(context, parts.engine, options.sample_wait) {}

  absl::Status Run(const v1::EvaluateRequest& request,
                   grpc::ServerWriter<v1::EvaluateResult>* writer, Counter* evaluated) {
    MR_RETURN_IF_ERROR(Check(request));
    MR_RETURN_IF_ERROR(AwaitVersion(request));
    for (uint64_t id : request.problem_ids()) MR_RETURN_IF_ERROR(SubmitProblem(request, id));
    while (!requests_.done()) {
      MR_ASSIGN_OR_RETURN(SampleQueue::Item item, requests_.Next());
      if (item.sample.reason == FinishReason::kCancelled) return VersionGone();
      MR_ASSIGN_OR_RETURN(const v1::EvaluateResult result, Judge(item));
      evaluated->Increment();
      if (!writer->Write(result)) return absl::CancelledError("the caller gave up");
    }
    return absl::OkStatus();
  }

 private:
  struct Held {
    PreparedProblem prepared;
    bool has_baseline = false;
    bool baseline_correct = false;
  };

  absl::Status Check(const v1::EvaluateRequest& request) {
    if (request.task() != parts_.task->name()) {
      return absl::InvalidArgumentError(absl::StrCat("this server has task \"", parts_.task->name(),
                                                     "\", not \"", request.task(), "\""));
    }
    if (request.split() != "eval" && request.split() != "train") {
      return absl::InvalidArgumentError(
          absl::StrCat("split \"", request.split(), "\"; valid: eval, train"));
    }
    if (request.samples() == 0) return absl::InvalidArgumentError("samples is 0");
    return absl::OkStatus();
  }

  absl::Status AwaitVersion(const v1::EvaluateRequest& request) {
    version_ = request.version() >= 0 ? request.version() : parts_.versions->active_version();
    if (version_ < 0) version_ = 0;
    Clock* clock = Clock::Real();
    const absl::Time deadline = clock->Now() + absl::Milliseconds(request.wait_ms());
    while (true) {
      const absl::Duration left = deadline - clock->Now();
      const absl::Status status = parts_.versions->WaitForVersion(
          version_, std::max(absl::ZeroDuration(), std::min(kSlice, left)));
      if (status.ok()) break;
      if (context_->IsCancelled()) return absl::CancelledError("the caller gave up");
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            absl::StrCat("evaluation waited ", request.wait_ms(), " ms; ", status.message()));
      }
    }
    return parts_.versions->active_version() == version_ ? absl::OkStatus() : VersionGone();
  }

  absl::Status VersionGone() const {
    return absl::FailedPreconditionError(absl::StrCat(
        "version ", version_, " is gone: the active one is ", parts_.versions->active_version()));
  }

  absl::Status SubmitProblem(const v1::EvaluateRequest& request, uint64_t id) {
    const Split split = request.split() == "eval" ? Split::kEval : Split::kTrain;
    Held held;
    MR_ASSIGN_OR_RETURN(held.prepared, PrepareProblem(*parts_.task, *parts_.tokenizer, split, id));
    MR_RETURN_IF_ERROR(CheckPromptLength(held.prepared, options_.max_prompt_tokens));
    const Problem& problem = held.prepared.problem;
    if (const auto answer = parts_.task->Baseline(problem); answer.has_value()) {
      MR_ASSIGN_OR_RETURN(const Verdict verdict, VerifyGuarded(*parts_.task, problem, *answer));
      held.has_baseline = true;
      held.baseline_correct = verdict.correct;
    }
    EngineRequest engine_request;
    engine_request.prompt = held.prepared.prompt;
    engine_request.indices = Indices(request.samples());
    engine_request.seed =
        SampleStream(request.sampling().seed(), static_cast<uint32_t>(id ^ (id >> 32)));
    engine_request.sampling = ParamsOf(request.sampling());
    engine_request.max_new_tokens = request.sampling().max_new_tokens() > 0
                                        ? static_cast<int32_t>(request.sampling().max_new_tokens())
                                        : options_.max_new_tokens;
    engine_request.stop_ids = options_.stop_ids;
    engine_request.stop = MakeStopCheck(parts_.tokenizer, parts_.task->StopStrings());
    engine_request.priority = 1;
    engine_request.pinned_version = version_;
    held_.push_back(std::move(held));
    return requests_.Submit(std::move(engine_request));
  }

  absl::StatusOr<v1::EvaluateResult> Judge(const SampleQueue::Item& item) {
    const Held& held = held_[item.request];
    const std::string text = parts_.tokenizer->Decode(item.sample.token_ids);
    MR_ASSIGN_OR_RETURN(const Verdict verdict,
                        VerifyGuarded(*parts_.task, held.prepared.problem, text));
    v1::EvaluateResult result;
    result.set_problem_id(held.prepared.problem.id);
    result.set_sample(item.sample.index);
    result.set_reward(verdict.reward);
    result.set_correct(verdict.correct);
    result.set_tokens(static_cast<uint32_t>(item.sample.token_ids.size()));
    result.set_truncated(item.sample.reason == FinishReason::kLength);
    result.set_version(version_);
    if (item.sample.index == 0) result.set_prompt_text(held.prepared.prompt_text);
    result.set_completion_text(text);
    result.set_has_baseline(held.has_baseline);
    result.set_baseline_correct(held.baseline_correct);
    return result;
  }

  const RolloutService::Options& options_;
  const RolloutService::Parts& parts_;
  grpc::ServerContext* const context_;
  int64_t version_ = -1;
  std::vector<Held> held_;
  CallRequests requests_;
};

v1::GeneratedSample ToProto(const GeneratedSample& sample) {
  v1::GeneratedSample out;
  out.mutable_token_ids()->Add(sample.token_ids.begin(), sample.token_ids.end());
  out.mutable_logprobs()->Add(sample.logprobs.begin(), sample.logprobs.end());
  out.set_truncated(sample.reason == FinishReason::kLength);
  for (const VersionSpan& span : sample.versions) {
    for (uint32_t i = span.begin; i < span.end; ++i) out.add_versions(span.version);
  }
  return out;
}

absl::Status RunGenerate(const RolloutService::Options& options, CallRequests* requests,
                         const v1::GenerateRequest& request, v1::GenerateReply* reply) {
  const uint32_t samples = std::max<uint32_t>(1, request.samples());
  EngineRequest engine_request;
  engine_request.prompt.assign(request.prompt().begin(), request.prompt().end());
  engine_request.indices = Indices(samples);
  engine_request.seed = request.sampling().seed();
  engine_request.sampling = ParamsOf(request.sampling());
  engine_request.max_new_tokens = request.sampling().max_new_tokens() > 0
                                      ? static_cast<int32_t>(request.sampling().max_new_tokens())
                                      : options.max_new_tokens;
  engine_request.stop_ids.assign(request.stop_ids().begin(), request.stop_ids().end());
  engine_request.priority = 1;
  MR_RETURN_IF_ERROR(requests->Submit(std::move(engine_request)));
  for (uint32_t i = 0; i < samples; ++i) reply->add_samples();
  while (!requests->done()) {
    MR_ASSIGN_OR_RETURN(const SampleQueue::Item item, requests->Next());
    if (item.sample.reason == FinishReason::kCancelled) {
      return absl::AbortedError("the engine cancelled the request");
    }
    *reply->mutable_samples(static_cast<int>(item.sample.index)) = ToProto(item.sample);
  }
  return absl::OkStatus();
}

}  // namespace

RolloutService::RolloutService(Options options, Parts parts)
    : options_(std::move(options)),
      parts_(parts),
      evaluated_(parts.metrics->AddCounter("millrace_rollout_evaluated_samples_total",
                                           "Samples of evaluations, verified and sent.")) {}

grpc::Status RolloutService::Evaluate(grpc::ServerContext* context,
                                      const v1::EvaluateRequest* request,
                                      grpc::ServerWriter<v1::EvaluateResult>* writer) {
  CallSlot slot(&running_calls_, options_.max_calls);
  if (absl::Status status = slot.status(); !status.ok()) return ToGrpc(status);
  return ToGrpc(Evaluation(options_, parts_, context).Run(*request, writer, &evaluated_));
}

grpc::Status RolloutService::Generate(grpc::ServerContext* context,
                                      const v1::GenerateRequest* request,
                                      v1::GenerateReply* reply) {
  CallSlot slot(&running_calls_, options_.max_calls);
  if (absl::Status status = slot.status(); !status.ok()) return ToGrpc(status);
  CallRequests requests(context, parts_.engine, options_.sample_wait);
  return ToGrpc(RunGenerate(options_, &requests, *request, reply));
}

grpc::Status RolloutService::Status(grpc::ServerContext*, const v1::RolloutStatusRequest*,
                                    v1::RolloutStatusReply* reply) {
  const Engine::Stats stats = parts_.engine->stats();
  reply->set_server(options_.server);
  reply->set_version(parts_.versions->active_version());
  reply->set_running_samples(static_cast<uint32_t>(stats.running));
  reply->set_waiting_samples(static_cast<uint32_t>(stats.waiting));
  reply->set_generated_tokens(stats.generated_tokens);
  reply->set_draining(parts_.loop != nullptr && parts_.loop->draining());
  return grpc::Status::OK;
}

grpc::Status RolloutService::Drain(grpc::ServerContext*, const v1::DrainRequest* request,
                                   v1::DrainReply* reply) {
  if (parts_.loop == nullptr) return grpc::Status::OK;
  reply->set_unfinished_groups(parts_.loop->Drain(absl::Milliseconds(request->deadline_ms())));
  return grpc::Status::OK;
}

}  // namespace millrace
