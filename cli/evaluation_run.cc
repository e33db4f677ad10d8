#include "cli/evaluation_run.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/local_model.h"
#include "cli/sample_queue.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "rollout_server/sample_builder.h"

namespace millrace {
namespace {

constexpr int64_t kMaxBatch = 64;

class Run {
 public:
  Run(const Task& task, const EvaluationSettings& settings, const EvaluationCallbacks& callbacks)
      : task_(task), settings_(settings), callbacks_(callbacks) {}

  absl::StatusOr<EvaluationOutcome> Go() {
    Clock* clock = Clock::Real();
    const absl::Time start = clock->Now();
    MR_RETURN_IF_ERROR(Load());
    const absl::Time loaded = clock->Now();
    const uint64_t there_are = task_.Size(Split::kEval);
    auto problems = static_cast<uint64_t>(settings_.problems);
    if (there_are > 0) problems = std::min(problems, there_are);
    const int64_t expected =
        static_cast<int64_t>(problems) * (settings_.samples + (settings_.greedy ? 1 : 0));
    Progress(0, expected);
    for (uint64_t id = 0; id < problems; ++id) MR_RETURN_IF_ERROR(Prepare(id));
    for (int64_t i = 0; i < expected; ++i) {
      MR_ASSIGN_OR_RETURN(const EndedSample ended, queue_->Take());
      MR_RETURN_IF_ERROR(Judge(ended));
      Progress(i + 1, expected);
    }
    outcome_.model_dir = model_.dir;
    outcome_.load_seconds = absl::ToDoubleSeconds(loaded - start);
    outcome_.seconds = absl::ToDoubleSeconds(clock->Now() - loaded);
    return std::move(outcome_);
  }

 private:
  void Progress(int64_t done, int64_t total) const {
    if (callbacks_.on_progress) callbacks_.on_progress(done, total);
  }

  absl::Status Load() {
    LocalModelOptions options;
    options.device = settings_.device;
    options.threads = settings_.threads;
    options.max_batch = kMaxBatch;
    // Room for a full batch of sequences of ordinary length; the engine queues what does not fit.
    options.kv_tokens = kMaxBatch * (256 + settings_.max_new_tokens);
    MR_ASSIGN_OR_RETURN(model_, LoadLocalModel(settings_.model, options));
    return absl::OkStatus();
  }

  absl::Status Prepare(uint64_t id) {
    MR_ASSIGN_OR_RETURN(PreparedProblem prepared,
                        PrepareProblem(task_, *model_.tokenizer, Split::kEval, id));
    ProblemOutcome outcome;
    outcome.source = prepared.problem.source;
    if (const auto answer = task_.Baseline(prepared.problem); answer.has_value()) {
      MR_ASSIGN_OR_RETURN(const Verdict verdict, VerifyGuarded(task_, prepared.problem, *answer));
      outcome.baseline = verdict.correct;
    }
    prepared_.push_back(std::move(prepared));
    outcome_.problems.push_back(outcome);
    if (settings_.greedy) MR_RETURN_IF_ERROR(Submit(id, /*greedy=*/true));
    if (settings_.samples > 0) MR_RETURN_IF_ERROR(Submit(id, /*greedy=*/false));
    return absl::OkStatus();
  }

  // Requests are numbered 2 * problem + (greedy ? 1 : 0).
  absl::Status Submit(uint64_t id, bool greedy) {
    EngineRequest request;
    request.prompt = prepared_[id].prompt;
    const int64_t samples = greedy ? 1 : settings_.samples;
    for (int64_t i = 0; i < samples; ++i) request.indices.push_back(static_cast<uint32_t>(i));
    request.seed = SampleStream(settings_.seed, static_cast<uint32_t>(id));
    request.sampling.temperature = greedy ? 0 : static_cast<float>(settings_.temperature);
    request.max_new_tokens = static_cast<int32_t>(settings_.max_new_tokens);
    request.stop_ids = model_.stop_ids;
    request.stop = MakeStopCheck(model_.tokenizer.get(), task_.StopStrings());
    const size_t number = 2 * id + (greedy ? 1 : 0);
    request.on_sample = [queue = queue_, number](GeneratedSample sample) {
      queue->Put({number, std::move(sample)});
    };
    const absl::Status status = model_.engine->Submit(std::move(request)).status();
    if (status.ok()) return status;
    return absl::Status(status.code(), absl::StrCat("problem ", id, ": ", status.message()));
  }

  absl::Status Judge(const EndedSample& ended) {
    const size_t id = ended.request / 2;
    EvaluatedSample sample;
    sample.greedy = ended.request % 2 == 1;
    sample.completion = model_.tokenizer->Decode(ended.sample.token_ids);
    MR_ASSIGN_OR_RETURN(sample.verdict,
                        VerifyGuarded(task_, prepared_[id].problem, sample.completion));
    sample.tokens = static_cast<int64_t>(ended.sample.token_ids.size());
    sample.truncated = ended.sample.reason == FinishReason::kLength;
    ProblemOutcome& outcome = outcome_.problems[id];
    if (sample.greedy) {
      outcome.greedy = sample.verdict.correct;
    } else {
      const double reward = sample.verdict.reward;
      const bool first = outcome.samples == 0;
      outcome.lowest_reward = first ? reward : std::min(outcome.lowest_reward, reward);
      outcome.highest_reward = first ? reward : std::max(outcome.highest_reward, reward);
      outcome.samples += 1;
      outcome.correct += sample.verdict.correct ? 1 : 0;
      outcome.tokens += sample.tokens;
      outcome.truncated += sample.truncated ? 1 : 0;
    }
    if (!callbacks_.on_sample) return absl::OkStatus();
    sample.problem = id;
    sample.source = prepared_[id].problem.source;
    sample.sample = ended.sample.index;
    sample.prompt = prepared_[id].prompt_text;
    sample.reference = prepared_[id].problem.reference;
    callbacks_.on_sample(sample);
    return absl::OkStatus();
  }

  const Task& task_;
  const EvaluationSettings& settings_;
  const EvaluationCallbacks& callbacks_;
  const std::shared_ptr<SampleQueue> queue_ = std::make_shared<SampleQueue>();
  std::vector<PreparedProblem> prepared_;
  EvaluationOutcome outcome_;
  LocalModel model_;  // last: its engine's thread uses the others
};

}  // namespace

absl::StatusOr<EvaluationOutcome> EvaluateModel(const Task& task,
                                                const EvaluationSettings& settings,
                                                const EvaluationCallbacks& callbacks) {
  return Run(task, settings, callbacks).Go();
}

}  // namespace millrace
