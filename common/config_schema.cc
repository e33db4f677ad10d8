#include "common/config_schema.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"

namespace millrace {
namespace {

// Largest integer that a double (and so a JSON reader) holds exactly.
constexpr double kMaxInt = 9007199254740992.0;

struct Range {
  double low;
  double high;
  bool above_low = false;
};

struct Where {
  const char* name;  // "section.field"
  ConfigRef ref;
};
#define FIELD(member)                                                        \
  Where {                                                                    \
#member, +[](RunConfig & c) -> decltype((c.member)) { return c.member; } \
  }

ConfigField Text(const Where& where, std::string help, std::vector<std::string> choices = {}) {
  const std::pair<std::string, std::string> names = absl::StrSplit(where.name, '.');
  ConfigField field;
  field.section = names.first;
  field.name = names.second;
  field.ref = where.ref;
  field.help = std::move(help);
  field.choices = std::move(choices);
  return field;
}

ConfigField Number(const Where& where, Range range, std::string help) {
  ConfigField field = Text(where, std::move(help));
  field.low = range.low;
  field.high = range.high;
  field.above_low = range.above_low;
  return field;
}

void AddRun(std::vector<ConfigField>& fields) {
  fields.push_back(Text(FIELD(run.name),
                        "Names the run in keys, metrics and the run directory: letters, digits, "
                        "dot, dash, underscore."));
  fields.push_back(Text(FIELD(run.dir), "Run directory; empty = runs/<name>-<time>."));
  fields.push_back(Number(FIELD(run.seed), {0, kMaxInt}, "Everything random derives from it."));
  fields.push_back(
      Number(FIELD(run.steps), {0, 1000000000}, "Learner steps; 0 = only the supervised warm-up."));
}

void AddModel(std::vector<ConfigField>& fields) {
  fields.push_back(
      Text(FIELD(model.path), "Hugging Face folder; empty = random weights of the shape below."));
  fields.push_back(
      Text(FIELD(model.architecture), "Random weights only.", {"qwen3", "qwen2", "llama"}));
  fields.push_back(Number(FIELD(model.vocab_size), {0, 1048576},
                          "0 = that of the byte tokenizer. Random weights only, as all below but "
                          "device and compute_dtype."));
  fields.push_back(Number(FIELD(model.hidden_size), {1, 65536}, "Width of the residual stream."));
  fields.push_back(Number(FIELD(model.layers), {1, 1024}, "Decoder layers."));
  fields.push_back(Number(FIELD(model.heads), {1, 1024}, "Query heads."));
  fields.push_back(Number(FIELD(model.kv_heads), {1, 1024}, "Key and value heads; divides heads."));
  fields.push_back(Number(FIELD(model.head_dim), {2, 1024}, "Width of a head; even."));
  fields.push_back(Number(FIELD(model.intermediate_size), {1, 1048576}, "Width of the gated MLP."));
  fields.push_back(
      Number(FIELD(model.rope_theta), {1, 1000000000.0}, "Base of the rotary embedding."));
  fields.push_back(Number(FIELD(model.max_position), {1, 4194304}, "Longest sequence, tokens."));
  fields.push_back(Text(FIELD(model.device), "cpu, cuda or cuda:N."));
  fields.push_back(Text(FIELD(model.compute_dtype),
                        "Number format of the factors of matrix products on the CPU (sums are "
                        "fp32): bf16 is about twice as fast on CPUs with AVX512_BF16; auto = bf16 "
                        "on those, else fp32. Weights stay fp32.",
                        {"fp32", "bf16", "auto"}));
}

void AddTask(std::vector<ConfigField>& fields) {
  fields.push_back(Text(FIELD(task.name), "What is learnt; `millrace tasks` lists them."));
  fields.push_back(Number(FIELD(task.seed), {0, kMaxInt}, "Of the problem generator."));
  fields.push_back(
      Number(FIELD(task.max_number), {1, 1000000000}, "Sums: operands are 0..max_number."));
  fields.push_back(Text(FIELD(task.partial_credit),
                        "Whether parts of an answer that are right are rewarded (calculator, "
                        "dates, order_json, sentence_json)."));
  fields.push_back(
      Text(FIELD(task.parts),
           "Mixture: its parts, \"task\" or \"task:weight\" each, or files that hold a [data] "
           "section; empty = sentence_json, order_json, dates, calculator."));
  fields.push_back(Text(FIELD(task.digest),
                        "Of the problems of a dataset, set by `millrace train` and checked by "
                        "every process; empty = not checked."));
}

void AddData(std::vector<ConfigField>& fields) {
  fields.push_back(Text(
      FIELD(data.files),
      "Task dataset: JSONL or CSV files, \"file\" or \"file:weight\" each (docs/datasets.md)."));
  fields.push_back(
      Text(FIELD(data.eval_files), "Held-out problems; empty = eval_fraction of those in files."));
  fields.push_back(Text(FIELD(data.question), "Column that {question} of the prompt stands for."));
  fields.push_back(Text(FIELD(data.answer), "Column of the right answer."));
  fields.push_back(Text(FIELD(data.demonstration),
                        "Column of a right completion, for the warm-up; empty = the answer, where "
                        "the verifier accepts it."));
  fields.push_back(Text(FIELD(data.prompt),
                        "User message; {column} stands for the column's value, {{ and }} for "
                        "braces."));
  fields.push_back(Text(FIELD(data.system), "System message; empty = none."));
  fields.push_back(Text(FIELD(data.chat),
                        "Whether the prompt goes through the chat template; false = plain text."));
  fields.push_back(Text(FIELD(data.verifier),
                        "How a completion is judged: exact text, the number it ends with, one "
                        "JSON value, or what pattern finds.",
                        {"exact", "numeric", "json", "regex"}));
  fields.push_back(Text(FIELD(data.pattern),
                        "Verifier regex: the first group of its last match is compared with the "
                        "answer (PCRE2)."));
  fields.push_back(Number(FIELD(data.eval_fraction), {0, 0.9, true},
                          "Held-out part when there are no eval_files, by hash of the prompt."));
  fields.push_back(Number(FIELD(data.near_duplicates), {0, 1},
                          "Prompts of this Jaccard similarity or more (shingles of three words) "
                          "are never on both sides of the split; 0 = off."));
}

void AddBuffer(std::vector<ConfigField>& fields) {
  fields.push_back(Text(FIELD(buffer.address),
                        "host:port the buffer listens on; empty = a free port of this machine."));
  fields.push_back(
      Number(FIELD(buffer.groups_per_step), {1, 1048576}, "Groups that make a batch."));
  fields.push_back(Number(FIELD(buffer.version_lead), {0, 1024},
                          "Admission: 0 = on-policy, 1 = one step off, ..."));
  fields.push_back(Number(FIELD(buffer.max_staleness), {0, 1024},
                          "Versions; older groups go the way of stale_action."));
  fields.push_back(Text(FIELD(buffer.stale_action), "What becomes of a group that is too stale.",
                        {"drop", "retry"}));
  fields.push_back(Number(FIELD(buffer.lease_seconds), {0, 86400, true}, "Deadline of a lease."));
  fields.push_back(
      Number(FIELD(buffer.max_attempts), {1, 1000}, "Leases of one group before it is dropped."));
  fields.push_back(Text(FIELD(buffer.oversample), "Widen admission by the expected drop rate."));
  fields.push_back(
      Number(FIELD(buffer.max_oversample), {0, 1000}, "At most this times groups_per_step more."));
  fields.push_back(
      Text(FIELD(buffer.durability),
           "sync = on disk before a push is acknowledged; memory = lost with the process.",
           {"sync", "memory"}));
  fields.push_back(Number(FIELD(buffer.keep_steps), {0, 1000000000},
                          "Newest steps whose trajectories keep their payload (tokens, logprobs) "
                          "in the store, 64 at least; 0 = all. Rows and texts always stay."));
  fields.push_back(Number(FIELD(buffer.batch_wait_seconds), {0, 86400, true},
                          "How long the learner waits for a batch before the run fails."));
}

void AddRollout(std::vector<ConfigField>& fields) {
  fields.push_back(
      Number(FIELD(rollout.servers), {1, 1024}, "Rollout servers that `millrace train` starts."));
  fields.push_back(Number(FIELD(rollout.group_size), {2, 4096},
                          "Samples per prompt (G). Group advantages need at least 2."));
  fields.push_back(
      Number(FIELD(rollout.max_new_tokens), {1, 1048576}, "Longest completion, tokens."));
  fields.push_back(Number(FIELD(rollout.temperature), {0, 100, true}, "Of training samples."));
  fields.push_back(Number(FIELD(rollout.top_k), {0, 1048576}, "0 = off."));
  fields.push_back(Number(FIELD(rollout.top_p), {0, 1, true}, "1 = off."));
  fields.push_back(Number(FIELD(rollout.max_batch), {1, 65536}, "Sequences decoded together."));
  fields.push_back(
      Number(FIELD(rollout.max_prompt_tokens), {1, 1048576}, "Longer prompts are refused."));
  fields.push_back(
      Number(FIELD(rollout.kv_tokens), {1, 1073741824}, "Capacity of the KV cache, tokens."));
  fields.push_back(Text(FIELD(rollout.swap_mode),
                        "On new weights: recompute = drop and redo the KV cache, in_place = keep "
                        "it, drain = finish first.",
                        {"recompute", "in_place", "drain"}));
  fields.push_back(Number(FIELD(rollout.threads), {1, 1024}, "Compute threads of each server."));
  fields.push_back(Text(FIELD(rollout.devices),
                        "Devices of the servers rollout-0, rollout-1, ... in turn; empty = "
                        "model.device for all."));
}

void AddLearner(std::vector<ConfigField>& fields) {
  fields.push_back(Number(FIELD(learner.lr), {0, 10}, "Peak learning rate."));
  fields.push_back(
      Number(FIELD(learner.warmup_steps), {0, 1000000000}, "Steps of linear warm-up."));
  fields.push_back(Text(FIELD(learner.schedule), "After the warm-up.", {"constant", "cosine"}));
  fields.push_back(Number(FIELD(learner.min_lr_ratio), {0, 1}, "cosine ends at lr times this."));
  fields.push_back(Number(FIELD(learner.adam_beta1), {0, 0.999999}, "AdamW."));
  fields.push_back(Number(FIELD(learner.adam_beta2), {0, 0.99999999}, "AdamW."));
  fields.push_back(Number(FIELD(learner.adam_eps), {0, 1, true}, "AdamW."));
  fields.push_back(Number(FIELD(learner.weight_decay), {0, 100},
                          "AdamW; not applied to norm weights and biases."));
  fields.push_back(Number(FIELD(learner.max_grad_norm), {0, 1000000000.0},
                          "Clip the gradient to this norm; 0 = off."));
  fields.push_back(Text(FIELD(learner.loss),
                        "grpo = mean of sequence means, dapo = tokens of the batch, dr_grpo = "
                        "fixed length, bnpo = tokens of the micro-batches.",
                        {"grpo", "dapo", "dr_grpo", "bnpo"}));
  fields.push_back(Text(FIELD(learner.advantage_scale),
                        "Divide advantages by the std of the group, of the batch, or not at all.",
                        {"group", "batch", "none"}));
  fields.push_back(
      Number(FIELD(learner.clip_low), {0, 1}, "Ratios below 1 - clip_low are clipped."));
  fields.push_back(
      Number(FIELD(learner.clip_high), {0, 100}, "Ratios above 1 + clip_high are clipped."));
  fields.push_back(Number(FIELD(learner.kl_beta), {0, 1000},
                          "Weight of the KL term (k3) to the reference; 0 = no reference model."));
  fields.push_back(
      Number(FIELD(learner.updates_per_batch), {1, 1000}, "Optimizer steps over the same batch."));
  fields.push_back(Number(FIELD(learner.token_budget), {1, 16777216}, "Tokens per micro-batch."));
  fields.push_back(
      Number(FIELD(learner.logit_chunk), {1, 1048576}, "Rows of logits that exist at once."));
  fields.push_back(Number(FIELD(learner.threads), {0, 1024}, "Compute threads; 0 = one a core."));
  fields.push_back(Number(FIELD(learner.checkpoint_every), {1, 1000000000},
                          "Steps between checkpoints; the last step always has one."));
  fields.push_back(
      Number(FIELD(learner.keep_checkpoints), {1, 1000000}, "Newest checkpoints kept."));
  fields.push_back(
      Number(FIELD(learner.self_check_tolerance), {0, 1000},
             "Largest |sampler - learner| logprob at the first step, at least 0.5 with "
             "bf16 products; 0 = off."));
}

void AddSft(std::vector<ConfigField>& fields) {
  fields.push_back(Number(FIELD(sft.steps), {0, 1000000000},
                          "Supervised warm-up before step 1, at most so many steps; 0 = off."));
  fields.push_back(Number(FIELD(sft.batch_size), {1, 1048576}, "Demonstrations a step."));
  fields.push_back(Number(FIELD(sft.lr), {0, 10, true}, "Learning rate of the warm-up."));
  fields.push_back(Number(FIELD(sft.eval_every), {1, 1000000000}, "Steps between greedy checks."));
  fields.push_back(
      Number(FIELD(sft.stop_low), {0, 1},
             "The warm-up stops once held-out greedy accuracy is within [stop_low, stop_high]."));
  fields.push_back(Number(FIELD(sft.stop_high), {0, 1}, "See stop_low."));
}

void AddEval(std::vector<ConfigField>& fields) {
  fields.push_back(Number(FIELD(eval.problems), {0, 1073741824},
                          "Held-out problems before and after; 0 = no evaluation then."));
  fields.push_back(
      Number(FIELD(eval.samples), {1, 65536}, "Samples per problem at temperature 1."));
  fields.push_back(Text(FIELD(eval.greedy), "Also one greedy sample per problem."));
  fields.push_back(
      Number(FIELD(eval.every), {0, 1000000000}, "Steps between small evaluations; 0 = off."));
  fields.push_back(Number(FIELD(eval.every_problems), {1, 1073741824},
                          "Problems of a small evaluation, one sample each at temperature 1."));
}

void AddWeightSync(std::vector<ConfigField>& fields) {
  fields.push_back(
      Text(FIELD(weight_sync.address),
           "host:port of the learner's service; empty = a free port of this machine."));
  fields.push_back(Text(FIELD(weight_sync.transport),
                        "How weights travel: auto shares memory with servers on the learner's host "
                        "and relays over TCP to others; tcp always relays.",
                        {"auto", "tcp"}));
  fields.push_back(
      Number(FIELD(weight_sync.bucket_mib), {1, 1024}, "Size of a slice of the weights, MiB."));
  fields.push_back(Number(FIELD(weight_sync.transfer_seconds), {0, 86400, true},
                          "Deadline of one member's transfer."));
  fields.push_back(Number(FIELD(weight_sync.activate_seconds), {0, 86400, true},
                          "Deadline of the swap between decode steps."));
  fields.push_back(Number(FIELD(weight_sync.heartbeat_seconds), {0, 3600, true},
                          "Between signs of life of a member."));
  fields.push_back(Number(FIELD(weight_sync.member_timeout_seconds), {0, 86400, true},
                          "Silent members are removed."));
  fields.push_back(Text(FIELD(weight_sync.token), "Shared secret; empty = none."));
}

void AddSupervisor(std::vector<ConfigField>& fields) {
  fields.push_back(
      Number(FIELD(supervisor.backoff_seconds), {0, 3600, true},
             "First delay before a child is restarted; doubles up to max_backoff_seconds."));
  fields.push_back(
      Number(FIELD(supervisor.max_backoff_seconds), {0, 3600, true}, "See backoff_seconds."));
  fields.push_back(
      Number(FIELD(supervisor.max_restarts), {0, 1000000},
             "Restarts of one child within restart_window_seconds before the run fails."));
  fields.push_back(
      Number(FIELD(supervisor.restart_window_seconds), {0, 86400, true}, "See max_restarts."));
  fields.push_back(Number(FIELD(supervisor.start_timeout_seconds), {0, 86400, true},
                          "A child that has not announced itself by then is restarted."));
}

#undef FIELD

}  // namespace

const std::vector<ConfigField>& ConfigSchema() {
  static const std::vector<ConfigField>* const fields = [] {
    auto* result = new std::vector<ConfigField>;
    std::vector<ConfigField>& all = *result;
    AddRun(all);
    AddModel(all);
    AddTask(all);
    AddData(all);
    AddBuffer(all);
    AddRollout(all);
    AddLearner(all);
    AddSft(all);
    AddEval(all);
    AddWeightSync(all);
    AddSupervisor(all);
    return result;
  }();
  return *fields;
}

}  // namespace millrace
