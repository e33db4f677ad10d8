// Which model and tokenizer a run's config names: a Hugging Face folder, or random weights with the
// byte tokenizer. The learner and the rollout servers ask here, so that both mean the same model.
#ifndef MILLRACE_MODEL_RUN_MODEL_H_
#define MILLRACE_MODEL_RUN_MODEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/config.h"
#include "model/model_config.h"
#include "model/tokenizer.h"

namespace millrace {

struct RunModel {
  ModelConfig config;
  std::unique_ptr<Tokenizer> tokenizer;
};

// NOT_FOUND names the file of model.path that is missing and how to make it; INVALID_ARGUMENT names
// the contradictory field. Reads no weights.
absl::StatusOr<RunModel> LoadRunModel(const RunConfig::Model& model);

}  // namespace millrace

#endif  // MILLRACE_MODEL_RUN_MODEL_H_
