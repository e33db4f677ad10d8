// The one config of a run: a TOML file, overridden by --set section.field=value. Every process of a
// run reads the same file. Fields live in a table (config_schema.cc: name, type, default, valid
// range, help), from which parsing, checking, printing and docs/config.md are made.
#ifndef MILLRACE_COMMON_CONFIG_H_
#define MILLRACE_COMMON_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace millrace {

struct RunConfig {
  struct Run {
    std::string name = "run";  // names the run in keys, metrics and the run directory
    std::string dir;           // run directory; empty = runs/<name>-<time>
    int64_t seed = 0;          // everything random derives from it
    int64_t steps = 16;        // learner steps
  } run;

  struct Model {
    std::string path;                    // HF folder; empty = random weights from the fields below
    std::string architecture = "qwen3";  // qwen3, qwen2, llama (random weights only)
    int64_t vocab_size = 0;              // 0 = that of the byte tokenizer
    int64_t hidden_size = 128;
    int64_t layers = 4;
    int64_t heads = 4;
    int64_t kv_heads = 2;
    int64_t head_dim = 32;
    int64_t intermediate_size = 384;
    double rope_theta = 10000;
    int64_t max_position = 1024;
    std::string device = "cpu";          // cpu, cuda, cuda:N
    std::string compute_dtype = "fp32";  // of matrix products on the CPU: fp32, bf16, auto
  } model;

  struct Task {
    std::string name = "log_json";   // see `millrace tasks`
    int64_t seed = 1;                // of the problem generator
    int64_t max_number = 99;         // sums: operands are 0..max_number
    bool partial_credit = true;      // reward for parts of an answer that are right
    std::vector<std::string> parts;  // mixture: "task" or "task:weight" each
    std::string digest;  // of the problems, set by `millrace train`; empty = not checked
  } task;

  // Task "dataset"; for tasks that are a file of their own with such a section, what goes on top of
  // it (environments/dataset_task.h).
  struct Data {
    std::vector<std::string> files;       // JSONL or CSV, "file" or "file:weight" each
    std::vector<std::string> eval_files;  // held out; empty = eval_fraction of `files`
    std::string question = "question";    // columns
    std::string answer = "answer";
    std::string demonstration;          // column; empty = the answer, where the verifier accepts it
    std::string prompt = "{question}";  // {column} stands for its value
    std::string system;                 // system message; empty = none
    bool chat = true;                   // through the chat template; false = plain text
    std::string verifier = "exact";     // exact, numeric, json, regex
    std::string pattern;                // regex: its first group is the answer
    double eval_fraction = 0.1;
    double near_duplicates = 0.8;  // similarity from which prompts count as the same; 0 = off
    std::vector<std::string> overridden;  // names of the fields above that --set gave; not a field
  } data;

  struct Buffer {
    std::string address;          // host:port it listens on; empty = the supervisor picks a port
    int64_t groups_per_step = 8;  // groups that make a batch
    int64_t version_lead = 1;     // admission: 0 = on-policy, 1 = one step off, ...
    int64_t max_staleness = 4;    // older groups are dropped (or retried)
    std::string stale_action = "drop";  // drop, retry
    double lease_seconds = 120;         // deadline of a lease
    int64_t max_attempts = 5;           // leases of one group before it is dropped
    bool oversample = true;             // widen admission by the expected drop rate
    double max_oversample = 4;          // at most this times groups_per_step more
    std::string durability = "sync";    // sync (fsync before the ack), memory
    int64_t keep_steps = 0;             // steps whose payloads stay in the store; 0 = all
    double batch_wait_seconds = 600;  // how long the learner waits for a batch before the run fails
  } buffer;

  struct Rollout {
    int64_t servers = 2;     // rollout servers started by `millrace train`
    int64_t group_size = 8;  // G, samples per prompt
    int64_t max_new_tokens = 48;
    double temperature = 1;
    int64_t top_k = 0;       // 0 = off
    double top_p = 1;        // 1 = off
    int64_t max_batch = 64;  // sequences decoded together
    int64_t max_prompt_tokens = 512;
    int64_t kv_tokens = 65536;            // KV cache capacity, tokens
    std::string swap_mode = "recompute";  // recompute, in_place, drain
    int64_t threads = 1;                  // compute threads of each server
    std::vector<std::string> devices;     // of servers 0, 1, ... in turn; empty = model.device
  } rollout;

  struct Learner {
    double lr = 1e-5;
    int64_t warmup_steps = 0;
    std::string schedule = "constant";  // constant, cosine
    double min_lr_ratio = 0;            // cosine ends at lr * this
    double adam_beta1 = 0.9;
    double adam_beta2 = 0.999;
    double adam_eps = 1e-8;
    double weight_decay = 0;    // not applied to norm weights and biases
    double max_grad_norm = 1;   // 0 = off
    std::string loss = "dapo";  // grpo (mean of sequence means), dapo (tokens of the batch),
                                // dr_grpo (fixed length), bnpo
    std::string advantage_scale = "group";  // group (divide by the group's std), batch, none
    double clip_low = 0.2;
    double clip_high = 0.2;
    double kl_beta = 0;             // weight of KL (k3) to the reference; 0 = no reference model
    int64_t updates_per_batch = 1;  // optimizer steps over the same batch
    int64_t token_budget = 8192;    // tokens per micro-batch
    int64_t logit_chunk = 1024;     // rows of logits that exist at once
    int64_t threads = 0;            // 0 = one a core
    int64_t checkpoint_every = 4;   // steps; the last step always
    int64_t keep_checkpoints = 2;
    double self_check_tolerance =
        1e-4;  // largest |sampler - learner| logprob at the first step; 0 = off
  } learner;

  struct Sft {                // supervised warm-up before step 1; off when steps is 0
    int64_t steps = 0;        // at most
    int64_t batch_size = 64;  // demonstrations a step
    double lr = 2e-3;
    int64_t eval_every = 10;  // steps between greedy checks
    double stop_low = 0.2;    // stop once held-out greedy accuracy is in [stop_low, stop_high]
    double stop_high = 0.6;
  } sft;

  struct Eval {
    int64_t problems = 200;  // held-out problems before and after
    int64_t samples = 4;     // per problem at temperature 1
    bool greedy = true;      // also one greedy sample per problem
    int64_t every = 0;       // steps between small evaluations; 0 = off
    int64_t every_problems =
        32;  // problems of a small evaluation, one sample each at temperature 1
  } eval;

  struct WeightSync {
    std::string address;  // host:port of the learner's service; empty = the supervisor picks a port
    std::string transport = "auto";  // auto (shared memory on one host, else tcp), tcp
    int64_t bucket_mib = 8;
    double transfer_seconds = 120;  // deadline of one member's transfer
    double activate_seconds = 60;   // deadline of the swap between decode steps
    double heartbeat_seconds = 5;
    double member_timeout_seconds = 30;  // silent members are removed
    std::string token;                   // shared secret; empty = none
  } weight_sync;

  struct Supervisor {
    double backoff_seconds =
        0.5;  // first restart delay of a child, doubled up to max_backoff_seconds
    double max_backoff_seconds = 10;
    int64_t max_restarts = 10;  // of one child within restart_window_seconds
    double restart_window_seconds = 300;
    double start_timeout_seconds =
        120;  // a child that has not announced itself by then is restarted
  } supervisor;
};

// Device of the rollout server called `name`, whose number ("rollout-3") counts through
// rollout.devices; without a number it is 0.
std::string RolloutDevice(const RunConfig& config, const std::string& name);

// A problem with one field, ready to print: "quickstart.toml:12: learner.lr: ...".
struct ConfigIssue {
  std::string field;    // "learner.lr"
  int line = 0;         // 0 = not from the file (an override or a default)
  std::string message;  // what is wrong and what would be valid
};

// Parses, overrides ("a.b=c"), validates. INVALID_ARGUMENT lists every issue, one a line; unknown
// fields name the closest known one.
absl::StatusOr<RunConfig> LoadConfig(const std::string& path,
                                     absl::Span<const std::string> overrides = {});
absl::StatusOr<RunConfig> ParseConfig(const std::string& toml_text, const std::string& file_name,
                                      absl::Span<const std::string> overrides = {});
// Range checks and contradictions between fields.
std::vector<ConfigIssue> CheckConfig(const RunConfig& config);
// Full TOML with every field and its help as a comment; LoadConfig reads it back to the same
// config.
std::string PrintConfig(const RunConfig& config);

}  // namespace millrace

#endif  // MILLRACE_COMMON_CONFIG_H_
