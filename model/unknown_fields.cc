#include "model/unknown_fields.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
using Names = std::set<std::string>;

// Fields of related architectures that change what is computed, with the value that changes
// nothing.
struct ForeignField {
  const char* name;
  Json neutral;
};

const std::vector<ForeignField>& ForeignFields() {
  static const auto* const fields = new std::vector<ForeignField>{
      {"mlp_bias", false},
      {"embedding_multiplier", 1.0},
      {"residual_multiplier", 1.0},
      {"logits_scaling", 1.0},
      {"logit_scale", 1.0},
      {"scale_emb", 1.0},
      {"scale_depth", 1.0},
      {"final_logit_softcapping", 0.0},
      {"attn_logit_softcapping", 0.0},
      {"query_pre_attn_scalar", 0.0},
      {"attention_multiplier", 0.0},
      {"clip_qkv", 0.0},
      {"qk_layernorm", false},
      {"use_qk_norm", false},
      {"use_rope", true},
      {"use_mrope", false},
      {"rope_interleaved", false},
      {"use_bidirectional_attention", false},
      {"is_causal", true},
      {"is_encoder_decoder", false},
      {"add_cross_attention", false},
      {"tie_encoder_decoder", false},
      {"pruned_heads", Json::object()},
      {"no_rope_layers", Json::array()},
      {"kv_lora_rank", 0},
      {"n_shared_experts", 0},
      {"n_routed_experts", 0},
      {"shared_expert_intermediate_size", 0},
      {"num_nextn_predict_layers", 0},
      {"attention_chunk_size", 0},
      {"quantization_config", Json::object()},
  };
  return *fields;
}

Names WordsOf(absl::string_view text) { return absl::StrSplit(text, ' ', absl::SkipEmpty()); }

// What the reader of the config looks at itself.
const Names& ReadFields() {
  static const auto* const names = new Names(
      WordsOf("model_type architectures auto_map vocab_size hidden_size intermediate_size "
              "num_hidden_layers num_attention_heads num_key_value_heads head_dim "
              "max_position_embeddings hidden_act rms_norm_eps attention_bias tie_word_embeddings "
              "use_sliding_window sliding_window layer_types max_window_layers num_experts "
              "num_local_experts num_experts_per_tok moe_intermediate_size norm_topk_prob "
              "decoder_sparse_step mlp_only_layers router_aux_loss_coef rope_theta rope_scaling "
              "rope_parameters partial_rotary_factor original_max_position_embeddings "));
  return *names;
}

// What has no part in the model's function: how it was trained, is sampled from, stored or run.
const Names& HarmlessFields() {
  static const auto* const names = new Names(WordsOf(
      // Files and libraries.
      "dtype torch_dtype transformers_version transformers.js_config name_or_path "
      "tokenizer_class model_max_length max_sequence_length is_llama_config torchscript "
      "use_bfloat16 attn_implementation use_flash_attn use_flash_attention "
      "use_flash_attention_2 use_cache return_dict use_return_dict output_attentions "
      "output_hidden_states output_router_logits output_scores return_dict_in_generate "
      "pretraining_tp chunk_size_feed_forward cross_attention_hidden_size is_decoder "
      // Training.
      "initializer_range initializer_factor gradient_checkpointing aux_loss_alpha "
      "tf_legacy_loss finetuning_task task_specific_params problem_type id2label label2id "
      "num_labels "
      // Sampling, before generation_config.json was its place.
      "prefix do_sample early_stopping num_beams num_beam_groups num_return_sequences "
      "diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty "
      "no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids min_length max_length "
      "max_new_tokens remove_invalid_values exponential_decay_length_penalty suppress_tokens "
      "begin_suppress_tokens "));
  return *names;
}

bool Harmless(const std::string& name) {
  return HarmlessFields().contains(name) || absl::StartsWith(name, "_") ||
         absl::StartsWith(name, "unsloth_") || absl::StrContains(name, "dropout") ||
         absl::EndsWith(name, "pdrop") || absl::EndsWith(name, "_token") ||
         absl::EndsWith(name, "_token_id");
}

// Whether a word of the name is a part of a model, or a number that scales one.
bool SpeaksOfMaths(const std::string& name) {
  static const auto* const words = new Names(WordsOf(
      "attention attn rope rotary position positions positional alibi norm layernorm rmsnorm "
      "bias scale scaled scaling scalar multiplier softcap softcapping clip cap expert experts "
      "moe router routed shared topk window sliding layer layers depth block blocks act "
      "activation head heads embed embedding embeddings emb mlp ffn ffw feedforward q k v qk "
      "kv qkv hidden intermediate logit logits residual mask masked causal chunk nope gate "
      "gated gating glu quant quantization ssm conv mamba recurrent sink sinks lora rank mtp "
      "nextn dim theta factor sparse linear memory adapter softmax tie tied "));
  for (const absl::string_view word : absl::StrSplit(name, absl::ByAnyChar("_.-"))) {
    if (words->contains(std::string(word))) return true;
  }
  return false;
}

bool Off(const Json& value) {
  if (value.is_string() || value.is_structured()) return value.empty() || value == "";
  return value.is_null() || value == false || value == 0;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CheckUnknownFields(const ConfigFields& fields) {
  for (const ForeignField& foreign : ForeignFields()) {
    const Json* value = fields.Find(foreign.name);
    if (value != nullptr && *value != foreign.neutral) {
      return fields.Unsupported(absl::StrCat("\"", foreign.name, "\" ", value->dump()));
    }
  }
  std::vector<std::string> ignored;
  for (const auto& [name, value] : fields.json().items()) {
    const bool foreign = std::any_of(ForeignFields().begin(), ForeignFields().end(),
                                     [&, &n = name](const ForeignField& f) { return n == f.name; });
    if (foreign || ReadFields().contains(name) || Harmless(name) || value.is_null()) continue;
    if (SpeaksOfMaths(name) && !Off(value)) {
      return fields.Unsupported(
          absl::StrCat("\"", name, "\" ", value.dump(), ", a field that is not known here,"));
    }
    ignored.push_back(name);
  }
  return ignored;
}

absl::Status CheckRopeFields(const ConfigFields& fields, const Json& inner) {
  static const auto* const known = new Names(WordsOf(
      "type rope_type rope_theta factor original_max_position_embeddings low_freq_factor "
      "high_freq_factor beta_fast beta_slow truncate mscale mscale_all_dim attention_factor "
      "partial_rotary_factor finetuned "));
  for (const auto& [name, value] : inner.items()) {
    if (known->contains(name) || value.is_null()) continue;
    return fields.Unsupported(absl::StrCat("\"", name, "\" ", value.dump(),
                                           " of a rope, a field that is not known here,"));
  }
  return absl::OkStatus();
}

}  // namespace millrace
