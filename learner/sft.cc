#include "learner/sft.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/process.h"
#include "common/status_macros.h"
#include "environments/run_task.h"
#include "learner/train_step.h"
#include "model/decoder.h"
#include "model/kv_cache.h"
#include "model/sampling.h"
#include "model/torch_status.h"

namespace millrace {
namespace {

// Ids of warm-up problems start here, so that they are other ones than those of the GRPO steps.
constexpr uint64_t kFirstProblem = uint64_t{1} << 32;
constexpr size_t kMaxDecodeBatch = 128;
// Prompts at once: those of a whole batch may take long enough for someone to want to stop.
constexpr size_t kPrefillBatch = 16;

// A held-out problem being answered.
struct Answer {
  Problem problem;
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;  // sampled
  std::vector<KvSequence> kv;   // one, while it runs
  bool done = false;
};

bool Ends(const Answer& answer, const Tokenizer& tokenizer, const std::vector<int32_t>& stop_ids,
          const std::vector<std::string>& stop_strings) {
  if (std::find(stop_ids.begin(), stop_ids.end(), answer.tokens.back()) != stop_ids.end()) {
    return true;
  }
  if (stop_strings.empty()) return false;
  const std::string text = tokenizer.Decode(answer.tokens);
  return std::any_of(stop_strings.begin(), stop_strings.end(),
                     [&](const std::string& stop) { return absl::EndsWith(text, stop); });
}

// The next token of each answer.
absl::Status Advance(Decoder* decoder, absl::Span<Answer* const> answers) {
  std::vector<DecodeSequence> batch;
  for (Answer* a : answers) {
    batch.push_back({&a->kv[0],
                     a->tokens.empty() ? absl::MakeConstSpan(a->prompt)
                                       : absl::MakeConstSpan(a->tokens).last(1),
                     true});
  }
  MR_ASSIGN_OR_RETURN(at::Tensor logits, decoder->Decode(batch));
  const SampleRow greedy{SamplingParams{0, 0, 1}, 0, 0};
  const std::vector<SampledToken> next =
      Sample(logits, std::vector<SampleRow>(answers.size(), greedy));
  for (size_t i = 0; i < answers.size(); ++i) answers[i]->tokens.push_back(next[i].id);
  return absl::OkStatus();
}

// What all answers share.
struct GreedyDecoding {
  const Transformer& model;
  const Tokenizer& tokenizer;
  std::vector<std::string> stop_strings;
  const GreedyOptions& options;
};

// Decodes up to max_new_tokens of each answer greedily, all in one batch.
absl::Status DecodeGreedily(const GreedyDecoding& shared, absl::Span<Answer> answers) {
  const GreedyOptions& options = shared.options;
  const ModelConfig& config = shared.model.config();
  int64_t capacity = 0;
  for (const Answer& a : answers) {
    const int64_t tokens = static_cast<int64_t>(a.prompt.size()) + options.max_new_tokens;
    capacity += (tokens / KvCache::kBlockTokens + 1) * KvCache::kBlockTokens;
  }
  MR_ASSIGN_OR_RETURN(std::unique_ptr<KvCache> cache,
                      KvCache::Create(config, capacity, shared.model.device()));
  Decoder decoder(&shared.model, cache.get(), Decoder::Options());
  const std::vector<int32_t> stop_ids = StopIds(shared.tokenizer, config.eos_ids);
  for (Answer& a : answers) a.kv.push_back(cache->NewSequence());
  absl::Status status;
  for (int64_t step = 0; step < options.max_new_tokens && status.ok(); ++step) {
    std::vector<Answer*> running;
    for (Answer& a : answers) {
      if (!a.done) running.push_back(&a);
    }
    if (running.empty()) break;
    const size_t at_once = step == 0 ? kPrefillBatch : running.size();
    for (size_t begin = 0; begin < running.size() && status.ok(); begin += at_once) {
      status = options.stopping && options.stopping()
                   ? absl::CancelledError("the greedy check was stopped")
                   : Advance(&decoder, absl::MakeSpan(running).subspan(begin, at_once));
    }
    if (!status.ok()) break;
    for (Answer* a : running) {
      a->done = Ends(*a, shared.tokenizer, stop_ids, shared.stop_strings);
    }
  }
  for (Answer& a : answers) a.kv.clear();  // before the cache goes
  return status;
}

absl::StatusOr<SftExample> MakeExample(const Task& task, const Tokenizer& tokenizer,
                                       const std::vector<int32_t>& stop_ids, uint64_t id) {
  const Problem problem = task.Make(Split::kTrain, id);
  if (problem.demonstration.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("sft.steps is set, but task ", task.name(),
                                                      " has no demonstrations (problem ", id,
                                                      "); set sft.steps to 0"));
  }
  SftExample example;
  MR_ASSIGN_OR_RETURN(example.token_ids, EncodeProblem(tokenizer, problem));
  example.loss_mask.assign(example.token_ids.size(), 0);
  const std::vector<int32_t> answer = tokenizer.Encode(problem.demonstration);
  example.token_ids.insert(example.token_ids.end(), answer.begin(), answer.end());
  int32_t end = problem.messages.empty() ? tokenizer.eos_id() : tokenizer.TokenId("<|im_end|>");
  if (end < 0 && !stop_ids.empty()) end = stop_ids[0];
  if (end >= 0) example.token_ids.push_back(end);
  example.loss_mask.resize(example.token_ids.size(), 1);
  return example;
}

}  // namespace

absl::StatusOr<GreedyResult> GreedyAccuracy(const Transformer& model, const Tokenizer& tokenizer,
                                            const Task& task, const GreedyOptions& options) {
  std::vector<Answer> answers(static_cast<size_t>(options.problems));
  for (size_t i = 0; i < answers.size(); ++i) {
    answers[i].problem = task.Make(Split::kEval, i);
    MR_ASSIGN_OR_RETURN(answers[i].prompt, EncodeProblem(tokenizer, answers[i].problem));
  }
  GreedyResult result;
  result.problems = options.problems;
  const GreedyDecoding decoding{model, tokenizer, task.StopStrings(), options};
  try {
    c10::NoGradGuard no_grad;
    for (size_t begin = 0; begin < answers.size(); begin += kMaxDecodeBatch) {
      MR_RETURN_IF_ERROR(
          DecodeGreedily(decoding, absl::MakeSpan(answers).subspan(begin, kMaxDecodeBatch)));
    }
  } catch (const std::exception& e) {
    return StatusFromException("greedy check", e);
  }
  for (const Answer& a : answers) {
    result.correct += task.Verify(a.problem, tokenizer.Decode(a.tokens)).correct;
  }
  return result;
}

namespace {

// The state to go back to when a check overshoots.
struct Mark {
  int64_t step = 0;
  at::Tensor parameters, first, second;
  int64_t updates = 0;
};

class WarmUpRun {
 public:
  WarmUpRun(const RunConfig& config, const Tokenizer& tokenizer, Transformer* model,
            const WarmUpCallbacks& callbacks)
      : config_(config), tokenizer_(tokenizer), model_(model), callbacks_(callbacks) {}

  absl::StatusOr<WarmUpResult> Run() {
    MR_RETURN_IF_ERROR(Prepare());
    for (;;) {
      const absl::Status checked = Check();
      if (absl::IsCancelled(checked) && Stopping()) return Stopped();
      MR_RETURN_IF_ERROR(checked);
      if (Ended()) return Finish();
      TakeMark();
      const int64_t until = std::min(step_ + interval_, config_.sft.steps);
      while (step_ < until) {
        if (Stopping()) return Stopped();
        MR_RETURN_IF_ERROR(TrainStep());
      }
    }
  }

 private:
  bool Stopping() const { return callbacks_.stopping && callbacks_.stopping(); }
  WarmUpResult Stopped() {
    result_.end = WarmUpEnd::kStopped;
    return Finish();
  }

  absl::Status Prepare() {
    MR_ASSIGN_OR_RETURN(task_, MakeRunTask(config_));
    SftTrainer::Options o;
    o.lr = config_.sft.lr;
    o.token_budget = config_.learner.token_budget;
    o.logit_chunk = config_.learner.logit_chunk;
    o.optimizer.beta1 = config_.learner.adam_beta1;
    o.optimizer.beta2 = config_.learner.adam_beta2;
    o.optimizer.eps = config_.learner.adam_eps;
    o.optimizer.weight_decay = config_.learner.weight_decay;
    o.optimizer.max_grad_norm = config_.learner.max_grad_norm;
    o.optimizer.threads = ComputeThreads(config_.learner.threads);
    MR_ASSIGN_OR_RETURN(trainer_, SftTrainer::Create(model_, o));
    interval_ = std::max<int64_t>(config_.sft.eval_every, 1);
    stop_ids_ = StopIds(tokenizer_, model_->config().eos_ids);
    return absl::OkStatus();
  }

  absl::Status TrainStep() {
    std::vector<SftExample> examples;
    const auto size = static_cast<uint64_t>(config_.sft.batch_size);
    const uint64_t first = kFirstProblem + static_cast<uint64_t>(config_.run.seed) * 100000000 +
                           static_cast<uint64_t>(step_) * size;
    for (uint64_t i = 0; i < size; ++i) {
      MR_ASSIGN_OR_RETURN(SftExample example,
                          MakeExample(*task_, tokenizer_, stop_ids_, first + i));
      examples.push_back(std::move(example));
    }
    MR_ASSIGN_OR_RETURN(SftStepReport report, trainer_->Step(examples));
    skipped_in_a_row_ = report.skipped ? skipped_in_a_row_ + 1 : 0;
    if (skipped_in_a_row_ >= 3) {
      return absl::InternalError(absl::StrCat("warm-up: ", skipped_in_a_row_,
                                              " updates in a row were not finite at sft step ",
                                              step_, " (loss ", report.loss, "); lower sft.lr"));
    }
    ++step_;
    if (callbacks_.on_step) callbacks_.on_step(step_, report);
    return absl::OkStatus();
  }

  absl::Status Check() {
    MR_ASSIGN_OR_RETURN(GreedyResult greedy,
                        GreedyAccuracy(*model_, tokenizer_, *task_,
                                       {config_.eval.problems, config_.rollout.max_new_tokens,
                                        callbacks_.stopping}));
    result_.accuracy = greedy.accuracy();
    if (callbacks_.on_check) callbacks_.on_check(step_, greedy);
    return absl::OkStatus();
  }

  // True when the last check ends the warm-up; may go back to the mark to look again more closely.
  bool Ended() {
    const RunConfig::Sft& sft = config_.sft;
    if (result_.accuracy > sft.stop_high && mark_.parameters.defined() && interval_ > 1) {
      BackToMark();
      interval_ = 1;
      result_.accuracy = 0;
      return false;
    }
    if (result_.accuracy > sft.stop_high) {
      result_.end = WarmUpEnd::kOvershot;
      return true;
    }
    if (result_.accuracy >= sft.stop_low) {
      result_.end = WarmUpEnd::kInWindow;
      return true;
    }
    result_.end = WarmUpEnd::kOutOfSteps;
    return step_ >= sft.steps;
  }

  void TakeMark() {
    mark_.step = step_;
    mark_.parameters = model_->flat_parameters().detach().clone();
    mark_.first = trainer_->optimizer().first_moment().clone();
    mark_.second = trainer_->optimizer().second_moment().clone();
    mark_.updates = trainer_->optimizer().updates();
  }

  void BackToMark() {
    c10::NoGradGuard no_grad;
    model_->flat_parameters().copy_(mark_.parameters);
    // Of the same sizes, so it can't fail.
    trainer_->optimizer().Restore(mark_.updates, mark_.first, mark_.second).IgnoreError();
    step_ = mark_.step;
  }

  WarmUpResult Finish() {
    const RunConfig::Sft& sft = config_.sft;
    result_.steps = step_;
    const std::string window =
        absl::StrFormat("[%.0f %%, %.0f %%]", 100 * sft.stop_low, 100 * sft.stop_high);
    const std::string found =
        absl::StrFormat("greedy accuracy %.1f %% after %d steps", 100 * result_.accuracy, step_);
    switch (result_.end) {
      case WarmUpEnd::kInWindow:
        result_.message = absl::StrCat("warm-up ended in its window ", window, ": ", found);
        break;
      case WarmUpEnd::kOvershot:
        result_.message =
            absl::StrCat("warm-up jumped over its window ", window, " in one step: ", found,
                         "; a lower sft.lr or a wider window helps");
        break;
      case WarmUpEnd::kOutOfSteps:
        result_.message = absl::StrCat("warm-up did not reach its window ", window, ": ", found,
                                       "; more sft.steps or a higher sft.lr helps");
        break;
      case WarmUpEnd::kStopped:
        result_.message = absl::StrCat("warm-up was stopped: ", found);
        break;
    }
    return result_;
  }

  const RunConfig& config_;
  const Tokenizer& tokenizer_;
  Transformer* const model_;
  const WarmUpCallbacks& callbacks_;
  std::unique_ptr<Task> task_;
  std::unique_ptr<SftTrainer> trainer_;
  std::vector<int32_t> stop_ids_;
  Mark mark_;
  int64_t step_ = 0;
  int64_t interval_ = 1;
  int64_t skipped_in_a_row_ = 0;
  WarmUpResult result_;
};

}  // namespace

absl::StatusOr<WarmUpResult> WarmUp(const RunConfig& config, const Tokenizer& tokenizer,
                                    Transformer* model, const WarmUpCallbacks& callbacks) {
  try {
    return WarmUpRun(config, tokenizer, model, callbacks).Run();
  } catch (const std::exception& e) {
    return StatusFromException("warm-up", e);
  }
}

}  // namespace millrace
