#include "rollout_server/engine_validate.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "model/kv_cache.h"
#include "rollout_server/scheduler.h"

namespace millrace {

absl::Status ValidateEngineRequest(const EngineRequest& request, const ModelConfig& config,
                                   int64_t total_blocks) {
  const auto invalid = [](auto... parts) {
    return absl::InvalidArgumentError(absl::StrCat("generation request: ", parts...));
  };
  if (request.prompt.empty()) return invalid("the prompt has no token");
  if (request.indices.empty()) return invalid("no sample is asked for");
  if (request.max_new_tokens <= 0) return invalid("max_new_tokens is ", request.max_new_tokens);
  if (!request.on_sample) return invalid("on_sample is empty");
  for (int32_t token : request.prompt) {
    if (token < 0 || token >= config.vocab_size) {
      return invalid("token ", token, " is outside the vocabulary of ", config.vocab_size);
    }
  }
  const SamplingParams& sampling = request.sampling;
  if (!(sampling.temperature >= 0) || std::isinf(sampling.temperature)) {
    return invalid("temperature is ", sampling.temperature);
  }
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) return invalid("top_p is ", sampling.top_p);
  if (sampling.top_k < 0) return invalid("top_k is ", sampling.top_k);
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  if (config.max_position > 0 && prompt + request.max_new_tokens > config.max_position) {
    return invalid("prompt of ", prompt, " and ", request.max_new_tokens,
                   " new tokens exceed the maximum context length of ", config.max_position);
  }
  const SampleDemand demand = {prompt, request.max_new_tokens, 1, 0};
  const int64_t blocks =
      PromptBlocks(demand, KvCache::kBlockTokens) + OwnBlocks(demand, KvCache::kBlockTokens);
  if (blocks > total_blocks) {
    return absl::ResourceExhaustedError(
        absl::StrCat("generation request: prompt of ", prompt, " and ", request.max_new_tokens,
                     " new tokens need ", blocks, " KV blocks of ", KvCache::kBlockTokens,
                     " tokens; the cache has ", total_blocks));
  }
  return absl::OkStatus();
}

}  // namespace millrace
