#include "environments/few_shot_task.h"

#include <nlohmann/json.hpp>

#include "environments/json_answer.h"

namespace millrace {

Verdict MakeVerdict(const AnswerMatch& match, bool partial_credit) {
  Verdict verdict;
  verdict.correct = match.correct;
  if (!partial_credit) {
    verdict.reward = match.correct ? 1 : 0;
    verdict.components = {{"exact", verdict.reward}};
    return verdict;
  }
  verdict.components = {{"format", match.format ? 0.1 : 0},
                        {"fields", match.format ? 0.3 * match.fields : 0},
                        {"exact", match.correct ? 0.6 : 0}};
  // The sum of the parts is not 1 to the last bit.
  for (const RewardComponent& component : verdict.components) verdict.reward += component.value;
  if (match.correct) verdict.reward = 1;
  return verdict;
}

AnswerMatch MatchJsonObject(const std::string& reference, absl::string_view completion) {
  const nlohmann::json wanted = nlohmann::json::parse(reference, nullptr, false);
  const nlohmann::json got = ParseJsonAnswer(completion);
  AnswerMatch match;
  match.format = got.is_object();
  match.correct = match.format && SameJson(got, wanted);
  match.fields = MatchingFields(got, wanted);
  return match;
}

Problem FewShotTask::Make(Split split, uint64_t id) const {
  const bool held_out = split == Split::kEval;
  ProblemRandom random(options_.seed, held_out ? 1 : 0, id);
  Shot asked = Draw(&random);
  while (IsHeldOut(asked.line) != held_out) asked = Draw(&random);
  Problem problem;
  problem.id = id;
  problem.source = options_.name;
  for (const Shot& shot : options_.shots) {
    problem.messages.push_back({"user", options_.prompt + shot.line});
    problem.messages.push_back({"assistant", shot.answer});
  }
  problem.messages.push_back({"user", options_.prompt + asked.line});
  problem.reference = asked.answer;
  problem.demonstration = asked.answer;
  return problem;
}

Verdict FewShotTask::Verify(const Problem& problem, absl::string_view completion) const {
  return MakeVerdict(Match(problem.reference, completion), options_.partial_credit);
}

AnswerMatch FewShotTask::Match(const std::string& reference, absl::string_view completion) const {
  return MatchJsonObject(reference, completion);
}

std::string FewShotTask::LineOf(const Problem& problem) const {
  return problem.messages.back().content.substr(options_.prompt.size());
}

}  // namespace millrace
