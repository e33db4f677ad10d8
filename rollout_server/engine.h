// Continuous batching over one model: sequences join and leave at every decode step; a group's
// prompt is computed once and shared by its samples; weights change between decode steps. One
// thread runs the loop; the public calls are thread-safe.
#ifndef MILLRACE_ROLLOUT_SERVER_ENGINE_H_
#define MILLRACE_ROLLOUT_SERVER_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics.h"
#include "common/trajectory.h"
#include "model/parameter_view.h"
#include "model/sampling.h"
#include "model/transformer.h"

namespace millrace {

enum class FinishReason { kStop, kLength, kCancelled };

struct GeneratedSample {
  uint32_t index = 0;                 // within its request
  std::vector<int32_t> token_ids;     // (N) sampled tokens, the stop token included
  std::vector<float> logprobs;        // (N)
  std::vector<VersionSpan> versions;  // over 0..N of token_ids
  FinishReason reason = FinishReason::kStop;
  double seconds = 0;  // from admission to the last token
};

struct EngineRequest {
  std::vector<int32_t> prompt;    // token ids, at least one
  std::vector<uint32_t> indices;  // one sample for each; sample i draws from SampleStream(seed, i)
  uint64_t seed = 0;
  SamplingParams sampling;
  int32_t max_new_tokens = 0;
  std::vector<int32_t> stop_ids;  // end the sample; kept as its last token
  // Further end conditions on the decoded text so far (stop strings); called on the engine thread
  // after each token; may be empty.
  std::function<bool(absl::Span<const int32_t> tokens)> stop;
  int priority = 0;  // higher first (evaluation 1, training 0)
  // >= 0: sampled under this version only. Waits for it when it is yet to come; cancelled when a
  // later one is activated.
  int64_t pinned_version = -1;
  // Called once per sample, on the engine thread, as it ends. Must not block.
  std::function<void(GeneratedSample sample)> on_sample;
};

enum class SwapMode {
  kRecompute,  // drop all K/V and prefill again under the new weights
  kInPlace,    // keep K/V
  kDrain,      // admit nothing new and wait until the running samples ended
};

class Engine {
 public:
  struct Options {
    int64_t max_batch = 64;  // samples decoded together
    int64_t kv_tokens = 65536;
    int64_t prefill_chunk = 512;  // prompt tokens added to one step at most
    SwapMode swap_mode = SwapMode::kRecompute;
    // Compute threads, the loop's own among them; also LibTorch's for this process. They spin for
    // some tens of microseconds and then sleep. (Where LibTorch's own operators run beside other
    // processes on the same cores, OMP_WAIT_POLICY=passive keeps OpenMP from spinning for
    // milliseconds.)
    int threads = 1;
  };
  struct Stats {
    int64_t version = -1;
    int64_t running = 0, waiting = 0;  // samples
    int64_t waiting_swaps = 0;         // weight changes that the decode loop has not come to
    uint64_t generated_tokens = 0, prefill_tokens = 0, recomputed_tokens = 0, decode_steps = 0,
             weight_swaps = 0;
  };
  // Takes the model; decodes nothing until the first SwapWeights has set a version (SetVersion for
  // a fixed model).
  static absl::StatusOr<std::unique_ptr<Engine>> Start(std::unique_ptr<Transformer> model,
                                                       Options options, Metrics* metrics);
  ~Engine();  // cancels what runs, joins the thread

  // RESOURCE_EXHAUSTED / INVALID_ARGUMENT when it can never fit (names lengths and limits).
  absl::StatusOr<uint64_t> Submit(EngineRequest request);
  void Cancel(uint64_t request);  // on_sample is called with kCancelled for what had not ended
  // Runs `write` on the engine thread between two decode steps, then makes `version` the one new
  // tokens carry. On an error of `write` or when `deadline` passes first, the old version stays
  // (write must leave the weights as they were on error).
  absl::Status SwapWeights(int64_t version, std::function<absl::Status(Transformer&)> write,
                           absl::Time deadline);
  // The same with the parameters as bytes, as weight sync has them: INVALID_ARGUMENT names what
  // does not fit. Where Decoder::CanTakeWeights() they are packed from where they are and the
  // model's own memory stays untouched, so that the other SwapWeights is FAILED_PRECONDITION
  // afterwards.
  absl::Status SwapWeights(int64_t version, absl::Span<const ParameterBytes> parameters,
                           absl::Time deadline);
  void SetVersion(int64_t version);
  int64_t version() const;
  Stats stats() const;
  const ModelConfig& model_config() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_ROLLOUT_SERVER_ENGINE_H_
