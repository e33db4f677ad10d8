// Rotary position embedding (Su et al. 2021) and its published ways to a longer context, as
// transformers computes them. Pure functions, no torch.
#ifndef MILLRACE_MODEL_ROPE_H_
#define MILLRACE_MODEL_ROPE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/config_fields.h"

namespace millrace {

enum class RopeType { kDefault, kLinear, kLlama3, kYarn };
// default, linear, llama3, yarn: config.json's "rope_type".
const char* RopeTypeName(RopeType type);

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000;
  double factor = 1;                  // all but default
  int64_t original_max_position = 0;  // llama3, yarn: the context before scaling, in tokens
  double low_freq_factor = 1;         // llama3
  double high_freq_factor = 4;        // llama3
  double beta_fast = 32;              // yarn
  double beta_slow = 1;               // yarn
  bool truncate = true;               // yarn: whole dimensions bound the ramp
  double attention_factor = 1;        // cosines and sines are multiplied by it
};

// Reads "rope_theta", "rope_scaling" and "rope_parameters" (both layouts of transformers).
// UNIMPLEMENTED names another type or a partial rotation; INVALID_ARGUMENT a field that is wrong,
// or two that contradict each other.
absl::StatusOr<RopeConfig> ReadRopeConfig(const ConfigFields& fields, int64_t max_position);
// "rope_parameters" as transformers 5 has it; without "rope_theta" it is 4.x' "rope_scaling".
nlohmann::json RopeConfigToJson(const RopeConfig& rope);
absl::Status ValidateRopeConfig(const RopeConfig& rope);

// Radians a position turns each of the head_dim / 2 pairs by. default: theta^(-2i / head_dim);
// linear: divided by factor (kaiokendev 2023); llama3: by wavelength (Llama 3.1); yarn: Peng et al.
// 2023, "YaRN".
std::vector<double> RopeFrequencies(const RopeConfig& rope, int64_t head_dim);

}  // namespace millrace

#endif  // MILLRACE_MODEL_ROPE_H_
