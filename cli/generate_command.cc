// generate: samples of a model for given prompts.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/json_lines.h"
#include "cli/local_model.h"
#include "cli/prompt_input.h"
#include "cli/sample_queue.h"
#include "common/status_macros.h"
#include "model/kv_cache.h"

namespace millrace {
namespace {

constexpr int64_t kMaxBatch = 64;
constexpr size_t kMostOpen = 256;  // prompts that are worked on at once

class Generator {
 public:
  explicit Generator(const GenerateOptions& options) : options_(options) {}

  absl::Status Load() {
    LocalModelOptions model;
    model.device = options_.device;
    model.threads = options_.threads;
    model.max_batch = options_.has_prompt ? std::min(kMaxBatch, options_.samples) : kMaxBatch;
    model.kv_tokens = std::max<int64_t>(4096, model.max_batch * (256 + options_.max_new_tokens));
    if (options_.has_prompt) {
      model.least_kv_tokens = [this, batch = model.max_batch](const Tokenizer& tokenizer,
                                                              int64_t context) {
        return TokensOfPrompt(tokenizer, context, batch);
      };
    }
    MR_ASSIGN_OR_RETURN(model_, LoadLocalModel(options_.dir, model));
    format_.chat = model_.chat && !options_.raw;
    format_.vocab_size = static_cast<int32_t>(model_.engine->model_config().vocab_size);
    return absl::OkStatus();
  }

  absl::Status Add(int64_t number, const OrderedJson& line) {
    EngineRequest request;
    MR_ASSIGN_OR_RETURN(request.prompt, PromptIds(*model_.tokenizer, format_, line));
    if (request.prompt.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
    for (int64_t i = 0; i < options_.samples; ++i) {
      request.indices.push_back(static_cast<uint32_t>(i));
    }
    request.seed = SampleStream(options_.seed, static_cast<uint32_t>(number));
    request.sampling.temperature = static_cast<float>(options_.temperature);
    request.sampling.top_k = static_cast<int32_t>(options_.top_k);
    request.sampling.top_p = static_cast<float>(options_.top_p);
    request.max_new_tokens = static_cast<int32_t>(options_.max_new_tokens);
    request.stop_ids = model_.stop_ids;
    const auto key = static_cast<size_t>(number);
    request.on_sample = [queue = queue_, key](GeneratedSample sample) {
      queue->Put({key, std::move(sample)});
    };
    const size_t prompt_tokens = request.prompt.size();
    MR_RETURN_IF_ERROR(model_.engine->Submit(std::move(request)).status());
    open_[key].prompt_tokens = prompt_tokens;
    while (open_.size() >= kMostOpen) MR_RETURN_IF_ERROR(TakeOne());
    return absl::OkStatus();
  }

  // Waits for what is open and prints it.
  absl::Status Finish() {
    while (!open_.empty()) MR_RETURN_IF_ERROR(TakeOne());
    return absl::OkStatus();
  }
  // Whether samples came and could be printed so far.
  bool healthy() const { return healthy_; }

 private:
  struct Open {
    size_t prompt_tokens = 0;
    std::map<uint32_t, GeneratedSample> samples;
  };

  // K/V of the prompt that was given as a flag and of `batch` answers to it; 0 when it is refused
  // whatever the cache, as Add will say.
  int64_t TokensOfPrompt(const Tokenizer& tokenizer, int64_t context, int64_t batch) const {
    const PromptFormat format{SpeaksChat(tokenizer) && !options_.raw, tokenizer.vocab_size()};
    const auto ids = PromptIds(tokenizer, format, OrderedJson{{"prompt", options_.prompt}});
    if (!ids.ok()) return 0;
    const auto prompt = static_cast<int64_t>(ids->size());
    if (prompt + options_.max_new_tokens > context) return 0;
    // An answer begins and ends within a block.
    return prompt + batch * (options_.max_new_tokens + 2 * KvCache::kBlockTokens);
  }

  // Waits for a sample; prints what is ready, in the order of the input.
  absl::Status TakeOne() {
    const absl::Status status = TakeAndPrint();
    healthy_ = healthy_ && status.ok();
    return status;
  }
  absl::Status TakeAndPrint() {
    MR_ASSIGN_OR_RETURN(EndedSample ended, queue_->Take());
    open_[ended.request].samples[ended.sample.index] = std::move(ended.sample);
    while (!open_.empty() &&
           static_cast<int64_t>(open_.begin()->second.samples.size()) == options_.samples) {
      for (const auto& [index, sample] : open_.begin()->second.samples) {
        MR_RETURN_IF_ERROR(
            Print(open_.begin()->first, open_.begin()->second.prompt_tokens, sample));
      }
      open_.erase(open_.begin());
    }
    return absl::OkStatus();
  }

  absl::Status Print(size_t number, size_t prompt_tokens, const GeneratedSample& sample) const {
    OrderedJson json = {{"index", number},
                        {"sample", sample.index},
                        {"text", model_.tokenizer->Decode(sample.token_ids)},
                        {"ids", sample.token_ids},
                        {"finish", sample.reason == FinishReason::kLength ? "length" : "stop"},
                        {"prompt_tokens", prompt_tokens},
                        {"tokens", sample.token_ids.size()}};
    if (options_.logprobs) json["logprobs"] = sample.logprobs;
    return PrintJsonLine(json);
  }

  const GenerateOptions& options_;
  const std::shared_ptr<SampleQueue> queue_ = std::make_shared<SampleQueue>();
  PromptFormat format_;
  std::map<size_t, Open> open_;  // by number of the input line
  bool healthy_ = true;
  LocalModel model_;  // last: its engine's thread uses the others
};

absl::Status Generate(const GenerateOptions& options) {
  Generator generator(options);
  MR_RETURN_IF_ERROR(generator.Load());
  if (options.has_prompt) {
    MR_RETURN_IF_ERROR(generator.Add(0, OrderedJson{{"prompt", options.prompt}}));
    return generator.Finish();
  }
  const absl::Status read = ForEachJsonLine(
      StandardInput(),
      [&](int64_t number, const OrderedJson& line) { return generator.Add(number, line); });
  // The lines before a wrong one get their answers.
  if (generator.healthy()) MR_RETURN_IF_ERROR(generator.Finish());
  return read;
}

}  // namespace

int GenerateCommand(const GenerateOptions& options) {
  const absl::Status status = Generate(options);
  return status.ok() ? 0 : PrintFailure(status);
}

}  // namespace millrace
