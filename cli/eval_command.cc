#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cli/commands.h"
#include "cli/local_model.h"
#include "cli/progress.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "environments/run_task.h"
#include "evaluation/interval.h"
#include "rollout_server/sample_builder.h"

namespace millrace {
namespace {

constexpr absl::Duration kSampleWait = absl::Minutes(10);  // for the next sample to end
constexpr int64_t kMaxBatch = 64;

struct Done {
  size_t problem = 0;
  GeneratedSample sample;
};

// Samples that ended, from the engine's thread. Thread-safe.
class DoneQueue {
 public:
  void Put(Done done) {
    absl::MutexLock lock(&mu_);
    items_.push_back(std::move(done));
  }
  absl::StatusOr<Done> Take() {
    absl::MutexLock lock(&mu_);
    const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !items_.empty(); };
    Clock* clock = Clock::Real();
    if (!clock->AwaitWithDeadline(&mu_, absl::Condition(&ready), clock->Now() + kSampleWait)) {
      return absl::DeadlineExceededError(absl::StrCat("waited ", absl::FormatDuration(kSampleWait),
                                                      " for a sample of the engine to end"));
    }
    Done done = std::move(items_.front());
    items_.pop_front();
    return done;
  }

 private:
  absl::Mutex mu_;
  std::deque<Done> items_ ABSL_GUARDED_BY(mu_);
};

struct Settings {
  TaskOptions task;
  int64_t max_new_tokens = 256;
};

// From the flags, and from the run's config where they say nothing.
absl::StatusOr<Settings> MakeSettings(const EvalOptions& options) {
  Settings settings;
  if (const auto config = LoadRunConfigOf(options.dir); config.ok()) {
    settings.task = TaskOptionsOf(*config);
    settings.max_new_tokens = config->rollout.max_new_tokens;
  }
  if (!options.task.empty()) settings.task.name = options.task;
  if (options.max_new_tokens > 0) settings.max_new_tokens = options.max_new_tokens;
  if (settings.task.name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.dir, " is no run, so --task must be given; `millrace tasks` lists them"));
  }
  if (options.problems < 1 || options.samples < 1) {
    return absl::InvalidArgumentError("--problems and --samples must be at least 1");
  }
  return settings;
}

class Evaluation {
 public:
  Evaluation(const EvalOptions& options, const Settings& settings)
      : options_(options), settings_(settings), samples_(options.greedy ? 1 : options.samples) {}

  absl::StatusOr<nlohmann::ordered_json> Run() {
    const absl::Time start = Clock::Real()->Now();
    MR_ASSIGN_OR_RETURN(task_, MakeTask(settings_.task));
    LocalModelOptions model_options;
    model_options.device = options_.device;
    model_options.threads = options_.threads;
    model_options.max_batch = kMaxBatch;
    // Room for a full batch of sequences of ordinary length; the engine queues what does not fit.
    model_options.kv_tokens = kMaxBatch * (256 + settings_.max_new_tokens);
    MR_ASSIGN_OR_RETURN(model_, LoadLocalModel(options_.dir, model_options));
    for (int64_t id = 0; id < options_.problems; ++id) MR_RETURN_IF_ERROR(Submit(id));
    const int64_t total = options_.problems * samples_;
    for (int64_t i = 0; i < total; ++i) {
      MR_RETURN_IF_ERROR(TakeOne());
      ShowProgress(i + 1, total);
    }
    return Result(absl::ToDoubleSeconds(Clock::Real()->Now() - start));
  }

 private:
  absl::Status Submit(int64_t id) {
    MR_ASSIGN_OR_RETURN(
        PreparedProblem prepared,
        PrepareProblem(*task_, *model_.tokenizer, Split::kEval, static_cast<uint64_t>(id)));
    if (const auto answer = task_->Baseline(prepared.problem); answer.has_value()) {
      MR_ASSIGN_OR_RETURN(const Verdict verdict, VerifyGuarded(*task_, prepared.problem, *answer));
      has_baseline_ = true;
      baseline_correct_ += verdict.correct ? 1 : 0;
    }
    EngineRequest request;
    request.prompt = prepared.prompt;
    for (int64_t i = 0; i < samples_; ++i) request.indices.push_back(static_cast<uint32_t>(i));
    request.seed = SampleStream(options_.seed, static_cast<uint32_t>(id));
    request.sampling.temperature = options_.greedy ? 0 : static_cast<float>(options_.temperature);
    request.max_new_tokens = static_cast<int32_t>(settings_.max_new_tokens);
    request.stop_ids = model_.stop_ids;
    request.stop = MakeStopCheck(model_.tokenizer.get(), task_->StopStrings());
    request.on_sample = [queue = queue_, id](GeneratedSample sample) {
      queue->Put({static_cast<size_t>(id), std::move(sample)});
    };
    problems_.push_back(std::move(prepared.problem));
    results_.push_back({});
    return model_.engine->Submit(std::move(request)).status();
  }

  absl::Status TakeOne() {
    MR_ASSIGN_OR_RETURN(const Done done, queue_->Take());
    if (done.sample.reason == FinishReason::kCancelled) {
      return absl::AbortedError(
          absl::StrCat("the engine cancelled a sample of problem ", done.problem));
    }
    const std::string text = model_.tokenizer->Decode(done.sample.token_ids);
    MR_ASSIGN_OR_RETURN(const Verdict verdict,
                        VerifyGuarded(*task_, problems_[done.problem], text));
    results_[done.problem].samples += 1;
    results_[done.problem].correct += verdict.correct ? 1 : 0;
    tokens_ += static_cast<int64_t>(done.sample.token_ids.size());
    truncated_ += done.sample.reason == FinishReason::kLength ? 1 : 0;
    return absl::OkStatus();
  }

  void ShowProgress(int64_t done, int64_t total) const {
    if (isatty(STDERR_FILENO) == 0) return;
    std::fprintf(stderr, "\r%s %lld/%lld samples",
                 FormatBar(static_cast<double>(done) / static_cast<double>(total), 20).c_str(),
                 static_cast<long long>(done), static_cast<long long>(total));
    if (done == total) std::fprintf(stderr, "\r\x1b[K");
  }

  nlohmann::ordered_json Result(double seconds) const {
    const Proportion p = ClusteredProportion(results_);
    nlohmann::ordered_json json = {{"model", model_.dir},
                                   {"task", settings_.task.name},
                                   {"mode", options_.greedy ? "greedy" : "sampled"},
                                   {"problems", p.problems},
                                   {"samples", p.samples},
                                   {"correct", p.correct},
                                   {"accuracy", p.accuracy},
                                   {"low", p.interval.low},
                                   {"high", p.interval.high}};
    if (has_baseline_) {
      json["baseline_correct"] = baseline_correct_;
      json["baseline_accuracy"] =
          static_cast<double>(baseline_correct_) / static_cast<double>(p.problems);
    }
    json["tokens_mean"] = static_cast<double>(tokens_) / static_cast<double>(p.samples);
    json["truncated"] = truncated_;
    json["seconds"] = seconds;
    return json;
  }

  const EvalOptions& options_;
  const Settings& settings_;
  const int64_t samples_;  // per problem
  const std::shared_ptr<DoneQueue> queue_ = std::make_shared<DoneQueue>();
  std::unique_ptr<Task> task_;
  std::vector<Problem> problems_;
  std::vector<ProblemResult> results_;
  bool has_baseline_ = false;
  int64_t baseline_correct_ = 0;
  int64_t tokens_ = 0;
  int64_t truncated_ = 0;
  LocalModel model_;  // last: its engine's thread uses the others
};

}  // namespace

int EvalCommand(const EvalOptions& options) {
  const auto fail = [](const absl::Status& status, int code) {
    std::fprintf(stderr, "millrace: %s\n", std::string(status.message()).c_str());
    return code;
  };
  const absl::StatusOr<Settings> settings = MakeSettings(options);
  if (!settings.ok()) return fail(settings.status(), 2);
  Evaluation evaluation(options, *settings);
  const absl::StatusOr<nlohmann::ordered_json> result = evaluation.Run();
  if (!result.ok()) return fail(result.status(), 1);
  if (options.json) {
    std::printf("%s\n", result->dump().c_str());
  } else {
    std::printf("%s\n", FormatAccuracyReport(*result).c_str());
  }
  return 0;
}

}  // namespace millrace
