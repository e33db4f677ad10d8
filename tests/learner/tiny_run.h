// Tiny models and canned batches for the learner's tests.
#ifndef MILLRACE_TESTS_LEARNER_TINY_RUN_H_
#define MILLRACE_TESTS_LEARNER_TINY_RUN_H_

#include <ATen/Parallel.h>

#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "learner/gradient_pass.h"
#include "learner/train_step.h"
#include "model/transformer.h"

namespace millrace::testing {

// Threads that wait for each other while other programs use the cores make these tests a hundred
// times slower.
inline const bool kOneThread = (at::set_num_threads(1), true);

template <typename T>
T OrThrow(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(value.status().ToString());
  return *std::move(value);
}

inline ModelConfig TinyConfig() {
  ModelConfig c;
  c.model_type = "qwen3";
  c.vocab_size = 64;
  c.hidden_size = 32;
  c.intermediate_size = 48;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 8;
  c.max_position = 128;
  c.tie_word_embeddings = true;
  c.qk_norm = true;
  return c;
}

inline std::unique_ptr<Transformer> TinyModel(uint64_t seed = 3, at::Device device = at::kCPU) {
  auto model = OrThrow(Transformer::Create(TinyConfig(), seed, device));
  // Far enough from uniform for ratios and entropies to differ.
  for (const NamedParameter& parameter : model->parameters()) {
    if (parameter.name.find("norm") == std::string::npos) at::Tensor(parameter.tensor).mul_(4);
  }
  return model;
}

// `groups` groups of `size` random trajectories of version 0, rewards in turn 0 and 1.
inline Batch RandomBatch(uint64_t seed, int groups = 3, int size = 4, uint64_t first_group = 1) {
  std::mt19937_64 random(seed);
  auto draw = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
  };
  Batch batch;
  for (int g = 0; g < groups; ++g) {
    BatchGroup group;
    group.group_id = first_group + static_cast<uint64_t>(g);
    std::vector<int32_t> prompt;
    for (int i = draw(2, 7); i > 0; --i) prompt.push_back(draw(0, 63));
    for (int k = 0; k < size; ++k) {
      Trajectory t;
      t.key.group_id = group.group_id;
      t.key.index = static_cast<uint32_t>(k);
      t.task = "canned";
      t.token_ids = prompt;
      t.loss_mask.assign(prompt.size(), 0);
      for (int i = draw(1, 8); i > 0; --i) {
        t.token_ids.push_back(draw(0, 63));
        t.loss_mask.push_back(1);
      }
      t.logprobs.assign(t.token_ids.size(), 0);
      t.versions = {
          {0, static_cast<uint32_t>(prompt.size()), static_cast<uint32_t>(t.token_ids.size())}};
      t.reward = k % 2;
      group.trajectories.push_back(std::move(t));
    }
    batch.groups.push_back(std::move(group));
  }
  return batch;
}

// Fills in the logprobs that `model` gives, as the sampler would have reported them.
inline void FillLogprobs(Transformer& model, Batch* batch, double temperature = 1) {
  for (BatchGroup& group : batch->groups) {
    for (Trajectory& t : group.trajectories) {
      t.temperature = static_cast<float>(temperature);
      const PackInput input{t.token_ids, t.loss_mask, group.group_id};
      for (const MicroBatch& micro : OrThrow(PackTrajectories({&input, 1}, 1000))) {
        const TargetLogprobs result = OrThrow(ComputeLogprobs(model, micro, {temperature, 5}));
        for (size_t i = 0; i < micro.token.size(); ++i) {
          t.logprobs[micro.token[i]] = result.logprobs[i];
        }
      }
    }
  }
}

inline TrainerOptions TinyOptions() {
  TrainerOptions o;
  o.schedule.lr = 1e-3;
  o.logit_chunk = 16;
  o.max_completion_tokens = 8;
  o.optimizer.max_grad_norm = 1;
  return o;
}

}  // namespace millrace::testing

#endif  // MILLRACE_TESTS_LEARNER_TINY_RUN_H_
