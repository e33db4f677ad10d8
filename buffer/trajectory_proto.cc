#include "buffer/trajectory_proto.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// Length of the valid UTF-8 sequence at the start of `s`; 0 when there is none.
size_t SequenceLength(absl::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || s.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what is above U+10FFFF.
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f) ||
      (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return length;
}

}  // namespace

std::string ValidUtf8(absl::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    if (length == 0) {
      result += "\xef\xbf\xbd";
      text.remove_prefix(1);
    } else {
      result.append(text.data(), length);
      text.remove_prefix(length);
    }
  }
  return result;
}

void ToProto(const Trajectory& t, v1::Trajectory* proto) {
  proto->Clear();
  v1::TrajectoryKey* key = proto->mutable_key();
  key->set_run(ValidUtf8(t.key.run));
  key->set_group_id(t.key.group_id);
  key->set_index(t.key.index);
  key->set_attempt(t.key.attempt);
  proto->set_task(ValidUtf8(t.task));
  proto->set_problem_id(t.problem_id);
  proto->mutable_token_ids()->Add(t.token_ids.begin(), t.token_ids.end());
  proto->set_loss_mask(t.loss_mask.data(), t.loss_mask.size());
  proto->mutable_logprobs()->Add(t.logprobs.begin(), t.logprobs.end());
  for (const VersionSpan& span : t.versions) {
    v1::VersionSpan* out = proto->add_versions();
    out->set_version(span.version);
    out->set_begin(span.begin);
    out->set_end(span.end);
  }
  proto->set_reward(t.reward);
  for (const RewardComponent& component : t.reward_components) {
    v1::RewardComponent* out = proto->add_reward_components();
    out->set_name(ValidUtf8(component.name));
    out->set_value(component.value);
  }
  proto->set_status(static_cast<v1::TrajectoryStatus>(t.status));
  proto->set_status_detail(ValidUtf8(t.status_detail));
  proto->set_sampling_seed(t.sampling_seed);
  proto->set_temperature(t.temperature);
  proto->set_server(ValidUtf8(t.server));
  proto->set_created_unix_us(t.created_unix_us);
  proto->set_generate_seconds(t.generate_seconds);
  proto->set_prompt_text(ValidUtf8(t.prompt_text));
  proto->set_completion_text(ValidUtf8(t.completion_text));
}

absl::StatusOr<Trajectory> FromProto(const v1::Trajectory& proto) {
  if (proto.status() < v1::COMPLETED || proto.status() > v1::FAILED) {
    return absl::InvalidArgumentError(absl::StrCat("status is ", static_cast<int>(proto.status()),
                                                   "; valid: 1 (COMPLETED) to 4 (FAILED)"));
  }
  Trajectory t;
  t.key = {proto.key().run(), proto.key().group_id(), proto.key().index(), proto.key().attempt()};
  t.task = proto.task();
  t.problem_id = proto.problem_id();
  t.token_ids.assign(proto.token_ids().begin(), proto.token_ids().end());
  t.loss_mask.assign(proto.loss_mask().begin(), proto.loss_mask().end());
  t.logprobs.assign(proto.logprobs().begin(), proto.logprobs().end());
  for (const v1::VersionSpan& span : proto.versions()) {
    t.versions.push_back({span.version(), span.begin(), span.end()});
  }
  t.reward = proto.reward();
  for (const v1::RewardComponent& component : proto.reward_components()) {
    t.reward_components.push_back({component.name(), component.value()});
  }
  t.status = static_cast<TrajectoryStatus>(proto.status());
  t.status_detail = proto.status_detail();
  t.sampling_seed = proto.sampling_seed();
  t.temperature = proto.temperature();
  t.server = proto.server();
  t.created_unix_us = proto.created_unix_us();
  t.generate_seconds = proto.generate_seconds();
  t.prompt_text = proto.prompt_text();
  t.completion_text = proto.completion_text();
  return t;
}

}  // namespace millrace
