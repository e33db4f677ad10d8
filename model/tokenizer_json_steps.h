// The steps of a tokenizer.json around its model: normalizer, pre-tokenizer, post-processor,
// decoder. Errors as in tokenizer_json.h, without the file's name.
#ifndef MILLRACE_MODEL_TOKENIZER_JSON_STEPS_H_
#define MILLRACE_MODEL_TOKENIZER_JSON_STEPS_H_

#include <string>

#include "absl/status/status.h"
#include "model/tokenizer_json.h"
#include "nlohmann/json.hpp"

namespace millrace {

absl::Status ParseNormalizer(const nlohmann::json& json, Normalizer* normalizer);
// Sets *byte_level when there is a ByteLevel step.
absl::Status ParsePretokenizer(const nlohmann::json& json, bool* byte_level, TokenizerParts* parts);
absl::Status ParseDecoder(const nlohmann::json& json, TokenDecoder* decoder);
absl::Status ParsePostProcessor(const nlohmann::json& json, TokenizerParts* parts);

// "<what> is not supported".
absl::Status UnsupportedInTokenizer(const std::string& what);
// The "type" of a step; "null" or the start of the value when it has none.
std::string TypeOfStep(const nlohmann::json& json);
// Null, false, "" and 0 all mean that a feature is off.
bool IsFeatureSet(const nlohmann::json& object, const char* name);

}  // namespace millrace

#endif  // MILLRACE_MODEL_TOKENIZER_JSON_STEPS_H_
