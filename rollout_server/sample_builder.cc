#include "rollout_server/sample_builder.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

// Tokens of a prompt that a FAILED trajectory keeps, for a person to recognise it by.
constexpr size_t kFailedPromptTokens = 64;

const char* SplitName(Split split) { return split == Split::kTrain ? "train" : "eval"; }

Trajectory Start(const TrajectoryOrigin& origin, uint32_t index) {
  Trajectory t;
  t.key.run = origin.run;
  t.key.group_id = origin.lease.group_id;
  t.key.attempt = origin.lease.attempt;
  t.key.index = index;
  t.task = origin.lease.task;
  t.problem_id = origin.lease.problem_id;
  t.sampling_seed = SampleStream(origin.lease.seed, index);
  t.temperature = origin.temperature;
  t.server = origin.server;
  return t;
}

// No verdict, and no more tokens than the first of `prompt`: every trajectory has one.
void SetFailed(absl::Span<const int32_t> prompt, Trajectory* t) {
  prompt = prompt.subspan(0, kFailedPromptTokens);
  t->token_ids.assign(prompt.begin(), prompt.end());
  if (t->token_ids.empty()) t->token_ids.push_back(0);
  t->loss_mask.assign(t->token_ids.size(), 0);
  t->logprobs.assign(t->token_ids.size(), 0);
  t->status = TrajectoryStatus::kFailed;
}

void SetStatus(const SampleOutcome& outcome, Trajectory* t) {
  if (outcome.sample.reason == FinishReason::kCancelled) {
    t->status = TrajectoryStatus::kAborted;
    t->status_detail = absl::StrCat("cancelled after ", outcome.sample.token_ids.size(), " tokens");
    return;
  }
  if (!outcome.verdict.ok()) {
    t->status = TrajectoryStatus::kFailed;
    t->status_detail = outcome.verdict.status().ToString();
    return;
  }
  t->reward = outcome.verdict->reward;
  t->reward_components = outcome.verdict->components;
  t->status = TrajectoryStatus::kCompleted;
  if (outcome.sample.reason == FinishReason::kLength) {
    t->status = TrajectoryStatus::kTruncated;
    t->status_detail =
        absl::StrCat("length limit after ", outcome.sample.token_ids.size(), " tokens");
  }
}

}  // namespace

absl::StatusOr<PreparedProblem> PrepareProblem(const Task& task, const Tokenizer& tokenizer,
                                               Split split, uint64_t id) {
  PreparedProblem prepared;
  const std::string what = absl::StrCat(task.name(), " problem ", SplitName(split), "/", id);
  try {
    prepared.problem = task.Make(split, id);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("making ", what, ": ", e.what()));
  }
  absl::StatusOr<std::vector<int32_t>> prompt = EncodeProblem(tokenizer, prepared.problem);
  if (!prompt.ok()) {
    return absl::Status(prompt.status().code(),
                        absl::StrCat("encoding ", what, ": ", prompt.status().message()));
  }
  if (prompt->empty()) return absl::InvalidArgumentError(absl::StrCat(what, ": empty prompt"));
  prepared.prompt = *std::move(prompt);
  prepared.prompt_text = tokenizer.Decode(prepared.prompt, /*keep_special=*/true);
  return prepared;
}

absl::Status CheckPromptLength(const PreparedProblem& prepared, int64_t max_prompt_tokens) {
  const int64_t length = static_cast<int64_t>(prepared.prompt.size());
  if (length <= max_prompt_tokens) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("prompt of problem ", prepared.problem.id, " has ", length,
                   " tokens; rollout.max_prompt_tokens is ", max_prompt_tokens));
}

absl::StatusOr<Verdict> VerifyGuarded(const Task& task, const Problem& problem,
                                      const std::string& completion) {
  try {
    Verdict verdict = task.Verify(problem, completion);
    if (!std::isfinite(verdict.reward)) {
      return absl::InternalError(absl::StrCat("verifier of ", task.name(), ", problem ", problem.id,
                                              ": the reward is not finite"));
    }
    return verdict;
  } catch (const std::exception& e) {
    return absl::InternalError(
        absl::StrCat("verifier of ", task.name(), ", problem ", problem.id, ": ", e.what()));
  }
}

std::function<bool(absl::Span<const int32_t>)> MakeStopCheck(
    const Tokenizer* tokenizer, std::vector<std::string> stop_strings) {
  size_t longest = 0;
  for (const std::string& s : stop_strings) longest = std::max(longest, s.size());
  if (longest == 0) return nullptr;
  return [tokenizer, longest, stops = std::move(stop_strings)](absl::Span<const int32_t> tokens) {
    if (tokens.empty()) return false;
    // Only a stop string that reaches into the newest token is new: longest - 1 bytes before it
    // are enough.
    const std::string last = tokenizer->TokenBytes(tokens.back());
    std::string before;
    for (size_t i = tokens.size() - 1; i > 0 && before.size() + 1 < longest; --i) {
      before.insert(0, tokenizer->TokenBytes(tokens[i - 1]));
    }
    const std::string tail = before + last;
    return std::any_of(stops.begin(), stops.end(), [&](const std::string& s) {
      if (s.empty()) return false;
      const size_t from = before.size() + 1 > s.size() ? before.size() + 1 - s.size() : 0;
      return tail.find(s, from) != std::string::npos;
    });
  };
}

Trajectory BuildTrajectory(const TrajectoryOrigin& origin, const PreparedProblem& prepared,
                           const SampleOutcome& outcome) {
  const GeneratedSample& sample = outcome.sample;
  Trajectory t = Start(origin, sample.index);
  const size_t prompt = prepared.prompt.size();
  t.token_ids.reserve(prompt + sample.token_ids.size());
  t.token_ids = prepared.prompt;
  t.token_ids.insert(t.token_ids.end(), sample.token_ids.begin(), sample.token_ids.end());
  t.loss_mask.assign(prompt, 0);
  t.loss_mask.resize(t.token_ids.size(), 1);
  t.logprobs.assign(prompt, 0);
  t.logprobs.insert(t.logprobs.end(), sample.logprobs.begin(), sample.logprobs.end());
  for (VersionSpan span : sample.versions) {
    span.begin += static_cast<uint32_t>(prompt);
    span.end += static_cast<uint32_t>(prompt);
    t.versions.push_back(span);
  }
  SetStatus(outcome, &t);
  t.created_unix_us = outcome.ended_unix_us;
  t.generate_seconds = sample.seconds;
  t.prompt_text = prepared.prompt_text;
  t.completion_text = outcome.completion_text;
  return t;
}

Trajectory FailedTrajectory(const TrajectoryOrigin& origin, uint32_t index,
                            absl::Span<const int32_t> prompt, const absl::Status& why) {
  Trajectory t = Start(origin, index);
  SetFailed(prompt, &t);
  t.status_detail = why.ToString();
  return t;
}

Trajectory WithoutVerdict(const Trajectory& trajectory) {
  Trajectory t;
  t.key = trajectory.key;
  t.task = trajectory.task;
  t.problem_id = trajectory.problem_id;
  t.sampling_seed = trajectory.sampling_seed;
  t.temperature = trajectory.temperature;
  t.server = trajectory.server;
  t.created_unix_us = trajectory.created_unix_us;
  const auto& mask = trajectory.loss_mask;
  const auto prompt = static_cast<size_t>(std::find(mask.begin(), mask.end(), 1) - mask.begin());
  SetFailed(absl::MakeConstSpan(trajectory.token_ids).first(prompt), &t);
  return t;
}

}  // namespace millrace
