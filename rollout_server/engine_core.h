// The engine without its thread: requests in, one decode step at a time, samples out. Everything
// runs on the caller's thread, callbacks included. Not thread-safe; internal to Engine.
#ifndef MILLRACE_ROLLOUT_SERVER_ENGINE_CORE_H_
#define MILLRACE_ROLLOUT_SERVER_ENGINE_CORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "model/decoder.h"
#include "model/kernels/decode_pool.h"
#include "model/kv_cache.h"
#include "rollout_server/engine.h"
#include "rollout_server/engine_metrics.h"
#include "rollout_server/scheduler.h"

namespace millrace {

class EngineCore {
 public:
  static absl::StatusOr<std::unique_ptr<EngineCore>> Create(std::unique_ptr<Transformer> model,
                                                            const Engine::Options& options,
                                                            Metrics* metrics);
  ~EngineCore();  // CancelAll() is the caller's

  const ModelConfig& model_config() const { return model_->config(); }
  // What Submit says about a request: INVALID_ARGUMENT, RESOURCE_EXHAUSTED. Thread-safe.
  absl::Status Validate(const EngineRequest& request) const;

  // `request` has passed Validate; ids go up.
  void Add(uint64_t id, EngineRequest request);
  // Ends what has not ended with kCancelled.
  void Cancel(uint64_t id);
  void CancelAll();
  // One step over all running samples, after admitting waiting ones when `admit`. False when
  // nothing runs.
  bool Step(bool admit);
  // Runs `write`; on success `version` is active, requests pinned to an older one are cancelled and
  // K/V is dropped or kept as the mode says.
  absl::Status Swap(int64_t version, const std::function<absl::Status(Transformer&)>& write);
  // The same with the weights as bytes, which are packed from where they are when they can be.
  absl::Status Swap(int64_t version, absl::Span<const ParameterBytes> parameters);
  // The same weights under another version.
  void SetVersion(int64_t version);

  int64_t version() const { return version_; }
  int64_t running() const { return scheduler_->running(); }
  int64_t used_kv_blocks() const { return cache_->total_blocks() - cache_->free_blocks(); }
  Engine::Stats stats() const;
  void Idle();  // books the time that follows as idle

 private:
  struct Request;
  struct Sample;
  struct Slot;  // one sequence's part of a step
  EngineCore(std::unique_ptr<Transformer> model, const Engine::Options& options, Metrics* metrics);

  void Admit();
  void ForkPrompts();
  void PlanSlots(std::vector<Slot>* slots);
  absl::Status RunSlots(const std::vector<Slot>& slots);
  void AddToken(Sample* sample, const SampledToken& token);
  bool Ended(const Sample& sample, FinishReason* reason) const;
  void Deliver(Sample* sample, FinishReason reason);
  // Removes ended samples and requests with nothing left.
  void RemoveEnded();
  absl::Status Change(int64_t version, const std::function<absl::Status()>& change);
  absl::Status TakeWeights(absl::Span<const ParameterBytes> parameters);
  void DropCache();
  void CancelPinned();
  void Publish();

  const Engine::Options options_;
  std::unique_ptr<Transformer> model_;
  ComputePool pool_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Scheduler> scheduler_;
  EngineMetrics metrics_;
  std::map<uint64_t, std::unique_ptr<Request>> requests_;
  std::vector<std::unique_ptr<Sample>> running_;  // in order of admission
  int64_t version_ = -1;
  bool weights_outside_ = false;  // the decoder has its weights, the model's memory is undefined
  uint64_t generated_tokens_ = 0, prefill_tokens_ = 0, recomputed_tokens_ = 0, decode_steps_ = 0,
           weight_swaps_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_ROLLOUT_SERVER_ENGINE_CORE_H_
