#include "rollout_server/engine_core.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "model/parameter_view.h"
#include "model/torch_status.h"
#include "rollout_server/engine_validate.h"

namespace millrace {

struct EngineCore::Request {
  uint64_t id = 0;
  EngineRequest wanted;
  size_t admitted = 0;  // of wanted.indices
  int64_t running = 0;
  // With more than one sample the prompt's tokens but the last are read once, into `prompt`, and
  // each sample forks it; a single sample reads the prompt itself.
  bool share = false;
  std::optional<KvSequence> prompt;
  bool planned = false;  // has a slot in the step being planned

  int64_t prompt_tokens() const { return static_cast<int64_t>(wanted.prompt.size()); }
  int64_t waiting() const { return static_cast<int64_t>(wanted.indices.size() - admitted); }
};

struct EngineCore::Sample {
  Request* request = nullptr;
  uint32_t index = 0;
  uint64_t stream = 0;
  KvSequence kv;
  bool ready = false;  // has forked the shared prompt, or shares none
  bool ended = false;
  std::vector<int32_t> context;  // prompt and what was sampled
  std::vector<float> logprobs;
  std::vector<VersionSpan> versions;
  absl::Time started;

  int64_t pending() const { return static_cast<int64_t>(context.size()) - kv.length(); }
  absl::Span<const int32_t> sampled() const {
    return absl::MakeConstSpan(context).subspan(request->wanted.prompt.size());
  }
};

struct EngineCore::Slot {
  KvSequence* kv = nullptr;
  absl::Span<const int32_t> tokens;
  Sample* sample = nullptr;  // null: a shared prompt
  bool want_logits = false;
};

absl::StatusOr<std::unique_ptr<EngineCore>> EngineCore::Create(std::unique_ptr<Transformer> model,
                                                               const Engine::Options& options,
                                                               Metrics* metrics) {
  const auto positive = [](const char* name, int64_t value) {
    if (value > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("engine: ", name, " is ", value, ", must be positive"));
  };
  MR_RETURN_IF_ERROR(positive("max_batch", options.max_batch));
  MR_RETURN_IF_ERROR(positive("kv_tokens", options.kv_tokens));
  MR_RETURN_IF_ERROR(positive("prefill_chunk", options.prefill_chunk));
  MR_RETURN_IF_ERROR(positive("threads", options.threads));
  std::unique_ptr<EngineCore> core(new EngineCore(std::move(model), options, metrics));
  MR_ASSIGN_OR_RETURN(core->cache_, KvCache::Create(core->model_->config(), options.kv_tokens,
                                                    core->model_->device()));
  Decoder::Options decoder_options;
  decoder_options.pool = &core->pool_;
  core->decoder_ =
      std::make_unique<Decoder>(core->model_.get(), core->cache_.get(), decoder_options);
  core->scheduler_ = std::make_unique<Scheduler>(
      SchedulerLimits{options.max_batch, core->cache_->total_blocks(), KvCache::kBlockTokens});
  core->metrics_.kv_blocks.Set(static_cast<double>(core->cache_->total_blocks()));
  core->Idle();
  core->Publish();
  return core;
}

EngineCore::EngineCore(std::unique_ptr<Transformer> model, const Engine::Options& options,
                       Metrics* metrics)
    : options_(options), model_(std::move(model)), pool_(options.threads), metrics_(metrics) {}

EngineCore::~EngineCore() = default;

absl::Status EngineCore::Validate(const EngineRequest& request) const {
  return ValidateEngineRequest(request, model_config(), cache_->total_blocks());
}

void EngineCore::Add(uint64_t id, EngineRequest request) {
  SampleDemand demand;
  demand.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  demand.max_new_tokens = request.max_new_tokens;
  demand.samples = static_cast<int64_t>(request.indices.size());
  demand.priority = request.priority;
  auto entry = std::make_unique<Request>();
  entry->id = id;
  entry->share = demand.samples > 1 && demand.prompt_tokens > 1;
  entry->wanted = std::move(request);
  requests_[id] = std::move(entry);
  scheduler_->Add(id, demand);
  const int64_t pinned = requests_[id]->wanted.pinned_version;
  if (pinned >= 0 && pinned < version_) Cancel(id);
  Publish();
}

void EngineCore::Cancel(uint64_t id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& request = *found->second;
  for (const std::unique_ptr<Sample>& sample : running_) {
    if (sample->request == &request && !sample->ended) {
      Deliver(sample.get(), FinishReason::kCancelled);
    }
  }
  scheduler_->DropWaiting(id);
  while (request.waiting() > 0) {
    GeneratedSample sample;
    sample.index = request.wanted.indices[request.admitted++];
    sample.reason = FinishReason::kCancelled;
    metrics_.Samples(sample.reason).Increment();
    request.wanted.on_sample(std::move(sample));
  }
  RemoveEnded();
  Publish();
}

void EngineCore::CancelAll() {
  while (!requests_.empty()) Cancel(requests_.begin()->first);
}

bool EngineCore::Step(bool admit) {
  if (version_ < 0) return false;
  if (admit) Admit();
  if (running_.empty()) return false;
  ForkPrompts();
  std::vector<Slot> slots;
  PlanSlots(&slots);
  const absl::Status status = RunSlots(slots);
  if (!status.ok()) {
    // Nothing of this can be repaired here: what ran is given back, so that its callers know.
    spdlog::error("decode step of {} sequences failed, their requests are cancelled: {}",
                  slots.size(), status.ToString());
    while (!running_.empty()) Cancel(running_.front()->request->id);
  }
  RemoveEnded();
  Publish();
  return true;
}

void EngineCore::Admit() {
  const auto admissions = scheduler_->Admit([this](uint64_t id) {
    const int64_t pinned = requests_[id]->wanted.pinned_version;
    return pinned < 0 || pinned == version_;
  });
  const absl::Time now = Clock::Real()->Now();
  for (const Scheduler::Admission& admission : admissions) {
    Request& request = *requests_[admission.request];
    for (int64_t i = 0; i < admission.samples; ++i) {
      const uint32_t index = request.wanted.indices[request.admitted++];
      auto sample = std::unique_ptr<Sample>(new Sample{&request, index,
                                                       SampleStream(request.wanted.seed, index),
                                                       cache_->NewSequence(), !request.share});
      sample->context = request.wanted.prompt;
      sample->started = now;
      ++request.running;
      running_.push_back(std::move(sample));
    }
  }
}

void EngineCore::ForkPrompts() {
  for (const std::unique_ptr<Sample>& sample : running_) {
    Request& request = *sample->request;
    if (sample->ready || !request.prompt.has_value() ||
        request.prompt->length() < request.prompt_tokens() - 1) {
      continue;
    }
    sample->kv = request.prompt->Fork();
    sample->ready = true;
  }
  for (auto& [id, request] : requests_) {
    // The last sample has its fork: the prompt's unshared rest is not needed any more.
    if (request->prompt.has_value() && request->waiting() == 0 &&
        request->prompt->length() == request->prompt_tokens() - 1) {
      request->prompt.reset();
    }
  }
}

void EngineCore::PlanSlots(std::vector<Slot>* slots) {
  std::vector<int64_t> pending;
  std::vector<Request*> planned;
  for (const std::unique_ptr<Sample>& sample : running_) {
    Request& request = *sample->request;
    if (sample->ready) {
      slots->push_back({&sample->kv, sample->context, sample.get()});
      pending.push_back(sample->pending());
    } else if (!request.planned) {
      request.planned = true;
      planned.push_back(&request);
      if (!request.prompt.has_value()) request.prompt = cache_->NewSequence();
      slots->push_back({&*request.prompt, request.wanted.prompt});
      // At least 2, so that it shares the prefill budget.
      pending.push_back(
          std::max<int64_t>(2, request.prompt_tokens() - 1 - request.prompt->length()));
    }
  }
  for (Request* request : planned) request->planned = false;
  const std::vector<int64_t> take = PlanStep(pending, options_.prefill_chunk);
  size_t kept = 0;
  for (size_t i = 0; i < slots->size(); ++i) {
    Slot slot = (*slots)[i];
    int64_t count = take[i];
    if (slot.sample == nullptr) {
      const int64_t rest = static_cast<int64_t>(slot.tokens.size()) - 1 - slot.kv->length();
      count = std::min(count, rest);
    }
    if (count == 0) continue;
    slot.want_logits = slot.sample != nullptr && count == pending[i];
    slot.tokens = slot.tokens.subspan(slot.kv->length(), count);
    (*slots)[kept++] = slot;
  }
  slots->resize(kept);
}

absl::Status EngineCore::RunSlots(const std::vector<Slot>& slots) {
  std::vector<DecodeSequence> sequences;
  std::vector<SampleRow> rows;
  std::vector<Sample*> samples;
  int64_t prefill = 0;
  for (const Slot& slot : slots) {
    sequences.push_back({slot.kv, slot.tokens, slot.want_logits});
    const bool decodes = slot.want_logits && slot.tokens.size() == 1;
    if (!decodes) prefill += static_cast<int64_t>(slot.tokens.size());
    if (!slot.want_logits) continue;
    const Sample& sample = *slot.sample;
    rows.push_back({sample.request->wanted.sampling, sample.stream, sample.logprobs.size()});
    samples.push_back(slot.sample);
  }
  const bool mostly_prefill = prefill > static_cast<int64_t>(rows.size());
  metrics_.Enter(mostly_prefill ? "busy_prefill" : "busy_decode");
  MR_ASSIGN_OR_RETURN(at::Tensor logits, decoder_->Decode(sequences));
  MR_ASSIGN_OR_RETURN(const std::vector<SampledToken> tokens,
                      CatchTorch("sample", [&]() -> absl::StatusOr<std::vector<SampledToken>> {
                        return millrace::Sample(logits, rows, &pool_);
                      }));
  ++decode_steps_;
  prefill_tokens_ += prefill;
  generated_tokens_ += tokens.size();
  metrics_.decode_steps.Increment();
  metrics_.prefill_tokens.Increment(static_cast<double>(prefill));
  metrics_.generated_tokens.Increment(static_cast<double>(tokens.size()));
  metrics_.batch.Observe(static_cast<double>(rows.size()));
  for (size_t i = 0; i < tokens.size(); ++i) AddToken(samples[i], tokens[i]);
  return absl::OkStatus();
}

void EngineCore::AddToken(Sample* sample, const SampledToken& token) {
  const uint32_t position = static_cast<uint32_t>(sample->logprobs.size());
  sample->context.push_back(token.id);
  sample->logprobs.push_back(token.logprob);
  if (sample->versions.empty() || sample->versions.back().version != version_) {
    sample->versions.push_back({version_, position, position});
  }
  sample->versions.back().end = position + 1;
  FinishReason reason;
  if (Ended(*sample, &reason)) Deliver(sample, reason);
}

bool EngineCore::Ended(const Sample& sample, FinishReason* reason) const {
  const EngineRequest& wanted = sample.request->wanted;
  const auto& stops = wanted.stop_ids;
  *reason = FinishReason::kStop;
  if (std::find(stops.begin(), stops.end(), sample.context.back()) != stops.end()) return true;
  if (wanted.stop && wanted.stop(sample.sampled())) return true;
  *reason = FinishReason::kLength;
  return static_cast<int64_t>(sample.logprobs.size()) >= wanted.max_new_tokens;
}

void EngineCore::Deliver(Sample* sample, FinishReason reason) {
  GeneratedSample out;
  out.index = sample->index;
  out.token_ids.assign(sample->sampled().begin(), sample->sampled().end());
  out.logprobs = std::move(sample->logprobs);
  out.versions = std::move(sample->versions);
  out.reason = reason;
  out.seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - sample->started);
  sample->ended = true;
  sample->kv.Clear();
  --sample->request->running;
  scheduler_->Finish(sample->request->id);
  metrics_.Samples(reason).Increment();
  sample->request->wanted.on_sample(std::move(out));
}

void EngineCore::RemoveEnded() {
  running_.erase(std::remove_if(running_.begin(), running_.end(),
                                [](const auto& sample) { return sample->ended; }),
                 running_.end());
  for (auto entry = requests_.begin(); entry != requests_.end();) {
    Request& request = *entry->second;
    // The scheduler counts a prompt's blocks only while a sample of it runs.
    if (request.running == 0) request.prompt.reset();
    const bool done = request.running == 0 && request.waiting() == 0;
    entry = done ? requests_.erase(entry) : std::next(entry);
  }
}

absl::Status EngineCore::Swap(int64_t version,
                              const std::function<absl::Status(Transformer&)>& write) {
  return Change(version, [&]() -> absl::Status {
    if (weights_outside_) {
      return absl::FailedPreconditionError(
          "the engine's weights came as bytes; the model has none to be written in part");
    }
    MR_RETURN_IF_ERROR(CatchTorch("weight write", [&] { return write(*model_); }));
    decoder_->WeightsChanged();
    return absl::OkStatus();
  });
}

absl::Status EngineCore::TakeWeights(absl::Span<const ParameterBytes> parameters) {
  MR_RETURN_IF_ERROR(CheckParameters(model_config(), parameters, /*with_bytes=*/true));
  if (decoder_->CanTakeWeights(parameters)) {
    MR_RETURN_IF_ERROR(decoder_->TakeWeights(parameters));
    weights_outside_ = true;
    return absl::OkStatus();
  }
  MR_RETURN_IF_ERROR(WriteParameters(parameters, model_.get()));
  weights_outside_ = false;
  decoder_->WeightsChanged();
  return absl::OkStatus();
}

absl::Status EngineCore::Swap(int64_t version, absl::Span<const ParameterBytes> parameters) {
  return Change(version, [&] { return TakeWeights(parameters); });
}

void EngineCore::SetVersion(int64_t version) {
  Change(version, [] { return absl::OkStatus(); }).IgnoreError();
}

absl::Status EngineCore::Change(int64_t version, const std::function<absl::Status()>& change) {
  metrics_.Enter("swap");
  const absl::Time begin = Clock::Real()->Now();
  absl::Status status = change();
  if (status.ok()) {
    version_ = version;
    ++weight_swaps_;
    metrics_.weight_swaps.Increment();
    CancelPinned();
    if (options_.swap_mode != SwapMode::kInPlace) DropCache();
  }
  metrics_.swap_seconds.Observe(absl::ToDoubleSeconds(Clock::Real()->Now() - begin));
  Idle();
  Publish();
  return status;
}

void EngineCore::DropCache() {
  uint64_t dropped = 0;
  for (auto& [id, request] : requests_) {
    const int64_t shared = request->prompt_tokens() - 1;
    int64_t prompt = request->prompt.has_value() ? request->prompt->length() : 0;
    for (const std::unique_ptr<Sample>& sample : running_) {
      if (sample->request != request.get() || sample->kv.length() == 0) continue;
      if (request->share) prompt = shared;
      dropped += sample->kv.length() - (request->share ? shared : 0);
      sample->kv.Clear();
    }
    dropped += prompt;
    request->prompt.reset();
    request->share = request->running + request->waiting() > 1 && shared > 0;
  }
  for (const std::unique_ptr<Sample>& sample : running_) sample->ready = !sample->request->share;
  recomputed_tokens_ += dropped;
  metrics_.recomputed_tokens.Increment(static_cast<double>(dropped));
}

void EngineCore::CancelPinned() {
  std::vector<uint64_t> outdated;
  for (const auto& [id, request] : requests_) {
    const int64_t pinned = request->wanted.pinned_version;
    if (pinned < 0 || pinned == version_) continue;
    if (pinned < version_ || request->running > 0) outdated.push_back(id);
  }
  for (uint64_t id : outdated) Cancel(id);
}

Engine::Stats EngineCore::stats() const {
  Engine::Stats stats;
  stats.version = version_;
  stats.running = scheduler_->running();
  stats.waiting = scheduler_->waiting();
  stats.generated_tokens = generated_tokens_;
  stats.prefill_tokens = prefill_tokens_;
  stats.recomputed_tokens = recomputed_tokens_;
  stats.decode_steps = decode_steps_;
  stats.weight_swaps = weight_swaps_;
  return stats;
}

void EngineCore::Idle() { metrics_.Enter("idle"); }

void EngineCore::Publish() {
  metrics_.running.Set(static_cast<double>(scheduler_->running()));
  metrics_.waiting.Set(static_cast<double>(scheduler_->waiting()));
  metrics_.kv_blocks_used.Set(static_cast<double>(used_kv_blocks()));
  metrics_.version.Set(static_cast<double>(version_));
}

}  // namespace millrace
