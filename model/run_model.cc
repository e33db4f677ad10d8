#include "model/run_model.h"

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "model/adapter.h"
#include "model/model_checks.h"

namespace millrace {
namespace {

absl::StatusOr<RunModel> FromFolder(const std::string& folder) {
  MR_ASSIGN_OR_RETURN(const std::string dir, BaseModelDir(folder));
  MR_ASSIGN_OR_RETURN(const std::string tokenizer_dir, TokenizerDir(folder));
  for (const std::string& path :
       {JoinPath(dir, "config.json"), JoinPath(tokenizer_dir, "tokenizer.json")}) {
    if (FileExists(path)) continue;
    return absl::NotFoundError(
        absl::StrCat("model.path: ", path,
                     " is missing; make the folder with `millrace import "
                     "FILE.gguf ",
                     dir, "` (`make quickstart` does), or name a Hugging Face folder"));
  }
  RunModel out;
  MR_ASSIGN_OR_RETURN(out.config, LoadModelConfig(dir));
  MR_ASSIGN_OR_RETURN(out.tokenizer, Tokenizer::Load(tokenizer_dir));
  MR_RETURN_IF_ERROR(CheckTokenizerSize(*out.tokenizer, tokenizer_dir, out.config, dir));
  return out;
}

}  // namespace

absl::StatusOr<RunModel> LoadRunModel(const RunConfig::Model& model) {
  if (!model.path.empty()) return FromFolder(model.path);
  RunModel out;
  out.tokenizer = Tokenizer::Bytes();
  ModelConfig& c = out.config;
  c.model_type = model.architecture;
  c.vocab_size = model.vocab_size > 0 ? model.vocab_size : out.tokenizer->vocab_size();
  if (c.vocab_size < out.tokenizer->vocab_size()) {
    return absl::InvalidArgumentError(absl::StrCat("model.vocab_size is ", c.vocab_size,
                                                   "; the byte tokenizer needs at least ",
                                                   out.tokenizer->vocab_size()));
  }
  c.hidden_size = model.hidden_size;
  c.intermediate_size = model.intermediate_size;
  c.layers = model.layers;
  c.heads = model.heads;
  c.kv_heads = model.kv_heads;
  c.head_dim = model.head_dim;
  c.max_position = model.max_position;
  c.rope.theta = model.rope_theta;
  c.tie_word_embeddings = true;
  c.qk_norm = model.architecture == "qwen3";
  c.qkv_bias = model.architecture == "qwen2";
  if (out.tokenizer->eos_id() >= 0) c.eos_ids.push_back(out.tokenizer->eos_id());
  c.pad_id = out.tokenizer->TokenId("<|pad|>");
  MR_RETURN_IF_ERROR(ValidateModelConfig(c));
  return out;
}

}  // namespace millrace
