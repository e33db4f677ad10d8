#include "model/model_checks.h"

#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

// Names in the checkpoint that are no parameter of the model.
bool Ignorable(const ModelConfig& config, const std::string& name) {
  return (config.tie_word_embeddings && name == "lm_head.weight") ||
         absl::EndsWith(name, "rotary_emb.inv_freq");
}

// A config of a larger model may miss thousands.
std::string FirstOf(const std::set<std::string>& names) {
  constexpr size_t kMost = 12;
  if (names.size() <= kMost) return absl::StrJoin(names, ", ");
  const auto end = std::next(names.begin(), kMost);
  return absl::StrCat(absl::StrJoin(names.begin(), end, ", "), " and ", names.size() - kMost,
                      " more");
}

absl::Status CheckNames(const ModelConfig& config, const CheckpointReader& checkpoint,
                        const std::string& dir) {
  std::set<std::string> surplus, missing;
  for (std::string& name : checkpoint.Names()) {
    if (!Ignorable(config, name)) surplus.insert(std::move(name));
  }
  for (const ParameterShape& p : ParameterShapes(config)) {
    if (surplus.erase(p.name) == 0) missing.insert(p.name);
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(dir, ": ", missing.size(), " tensors are missing: ", FirstOf(missing)));
  }
  if (!surplus.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(dir, ": ", surplus.size(),
                                                   " tensors are not part of a ", config.model_type,
                                                   " model: ", FirstOf(surplus)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTensors(const ModelConfig& config, const CheckpointReader& checkpoint,
                          const std::string& dir) {
  MR_RETURN_IF_ERROR(CheckNames(config, checkpoint, dir));
  for (const ParameterShape& p : ParameterShapes(config)) {
    MR_ASSIGN_OR_RETURN(const TensorView view, checkpoint.Get(p.name));
    if (view.shape != p.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat(dir, ": tensor ", p.name, " has shape (", absl::StrJoin(view.shape, ", "),
                       "), config.json says (", absl::StrJoin(p.shape, ", "), ")"));
    }
    if (view.dtype != "F32" && view.dtype != "BF16" && view.dtype != "F16") {
      return absl::UnimplementedError(absl::StrCat(dir, ": tensor ", p.name, " has dtype ",
                                                   view.dtype, " (of F32, BF16, F16)"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTokenizerSize(int64_t ids, const std::string& tokenizer, int64_t rows,
                                const std::string& model) {
  // The other way round is usual: embeddings are padded to a round number of rows.
  if (ids <= rows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(tokenizer, ": the tokenizer has ", ids,
                                                 " ids, the embedding of ", model, " only ", rows,
                                                 " rows"));
}

absl::Status CheckTokenizerSize(const Tokenizer& tokenizer, const std::string& tokenizer_dir,
                                const ModelConfig& config, const std::string& model_dir) {
  return CheckTokenizerSize(tokenizer.vocab_size(), JoinPath(tokenizer_dir, "tokenizer.json"),
                            config.vocab_size, model_dir);
}

}  // namespace millrace
