// score: what a model thinks of given tokens.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/json_lines.h"
#include "cli/load_bar.h"
#include "cli/local_model.h"
#include "cli/prompt_input.h"
#include "cli/run_dir.h"
#include "common/process.h"
#include "common/status_macros.h"
#include "model/logprobs.h"
#include "model/torch_status.h"
#include "model/transformer.h"

namespace millrace {
namespace {

constexpr int64_t kLogitRows = 256;  // that exist at once

class Scorer {
 public:
  explicit Scorer(const ScoreOptions& options) : options_(options) {}

  absl::Status Load() {
    at::set_num_threads(ComputeThreads(options_.threads));
    MR_ASSIGN_OR_RETURN(const std::string dir, FindModelDir(options_.dir));
    MR_ASSIGN_OR_RETURN(tokenizer_, LoadModelTokenizer(dir));
    MR_ASSIGN_OR_RETURN(const at::Device device,
                        CatchTorch("--device", [&]() -> absl::StatusOr<at::Device> {
                          return at::Device(options_.device);
                        }));
    LoadBar bar("loading " + dir);
    MR_ASSIGN_OR_RETURN(model_, Transformer::Load(dir, device, {bar.callback()}));
    return absl::OkStatus();
  }

  // {"text"} or {"ids"}: every token but the first, which nothing stands before. With "completion"
  // beside a prompt: the completion's tokens.
  absl::Status Score(const OrderedJson& line) {
    const PromptFormat format{SpeaksChat(*tokenizer_),
                              static_cast<int32_t>(model_->config().vocab_size)};
    std::vector<int32_t> ids;
    size_t first = 1;
    if (line.is_object() && line.contains("completion")) {
      MR_ASSIGN_OR_RETURN(ids, PromptIds(*tokenizer_, format, line));
      first = ids.size();
      MR_ASSIGN_OR_RETURN(const std::string completion, TextMember(line, "completion"));
      const std::vector<int32_t> more = tokenizer_->Encode(completion);
      ids.insert(ids.end(), more.begin(), more.end());
    } else if (line.is_object() && line.contains("text")) {
      MR_ASSIGN_OR_RETURN(const std::string text, TextMember(line, "text"));
      ids = tokenizer_->Encode(text, {/*parse_special=*/false, /*add_special=*/true});
    } else if (line.is_string()) {
      ids = tokenizer_->Encode(line.get<std::string>(),
                               {/*parse_special=*/false, /*add_special=*/true});
    } else {
      MR_ASSIGN_OR_RETURN(ids, PromptIds(*tokenizer_, format, line));
    }
    return ScoreIds(ids, std::max<size_t>(first, 1));
  }

 private:
  absl::Status ScoreIds(const std::vector<int32_t>& ids, size_t first) {
    if (ids.size() <= first) {
      return absl::InvalidArgumentError(absl::StrCat(
          "there is nothing to score in ", ids.size(), ids.size() == 1 ? " token" : " tokens",
          ": of a text all but the first are scored, of a completion its own"));
    }
    if (static_cast<int64_t>(ids.size()) > model_->config().max_position) {
      return absl::InvalidArgumentError(
          absl::StrCat(ids.size(), " tokens, but the model takes ", model_->config().max_position));
    }
    MR_ASSIGN_OR_RETURN(const std::vector<float> logprobs,
                        CatchTorch("score", [&] { return Logprobs(ids, first); }));
    OrderedJson tokens = OrderedJson::array(), numbers = OrderedJson::array();
    double sum = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      tokens.push_back(tokenizer_->TokenBytes(ids[i]));
      if (i < first) {
        numbers.push_back(nullptr);
        continue;
      }
      numbers.push_back(logprobs[i - first]);
      sum += logprobs[i - first];
    }
    const double mean = sum / static_cast<double>(logprobs.size());
    return PrintJsonLine({{"ids", ids},
                          {"tokens", tokens},
                          {"logprobs", numbers},
                          {"scored", logprobs.size()},
                          {"sum", sum},
                          {"mean", mean},
                          {"perplexity", std::exp(-mean)}});
  }

  // Natural-log probabilities of ids[first..], each given all before it.
  absl::StatusOr<std::vector<float>> Logprobs(const std::vector<int32_t>& ids, size_t first) {
    const at::NoGradGuard no_grad;
    PackedBatch batch;
    batch.token_ids.assign(ids.begin(), ids.end() - 1);
    batch.positions.resize(batch.token_ids.size());
    std::iota(batch.positions.begin(), batch.positions.end(), 0);
    batch.segments = {{0, static_cast<int64_t>(batch.token_ids.size()), -1}};
    MR_ASSIGN_OR_RETURN(const at::Tensor hidden, model_->Forward(batch));
    const auto rows = static_cast<int64_t>(ids.size() - first);
    const at::Tensor targets =
        at::tensor(std::vector<int64_t>(ids.begin() + static_cast<ptrdiff_t>(first), ids.end()),
                   at::TensorOptions().dtype(at::kLong))
            .to(hidden.device());
    const LogprobResult result =
        SelectedLogprobs(hidden.slice(0, hidden.size(0) - rows), model_->lm_head(), targets,
                         {options_.temperature, kLogitRows});
    const at::Tensor values = result.logprobs.to(at::kCPU).contiguous();
    const float* data = values.const_data_ptr<float>();
    return std::vector<float>(data, data + rows);
  }

  const ScoreOptions& options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Transformer> model_;
};

absl::Status Score(const ScoreOptions& options) {
  Scorer scorer(options);
  MR_RETURN_IF_ERROR(scorer.Load());
  if (options.has_text) return scorer.Score({{"text", options.text}});
  return ForEachJsonLine(
      StandardInput(), [&scorer](int64_t, const OrderedJson& line) { return scorer.Score(line); });
}

}  // namespace

int ScoreCommand(const ScoreOptions& options) {
  const absl::Status status = Score(options);
  return status.ok() ? 0 : PrintFailure(status);
}

}  // namespace millrace
