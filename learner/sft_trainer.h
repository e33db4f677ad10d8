// Cross-entropy on given token sequences, over the masked-in tokens only, mean over the tokens of a
// step. Not thread-safe.
#ifndef MILLRACE_LEARNER_SFT_TRAINER_H_
#define MILLRACE_LEARNER_SFT_TRAINER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "learner/optimizer.h"
#include "model/transformer.h"

namespace millrace {

struct SftExample {
  std::vector<int32_t> token_ids;  // (T)
  std::vector<uint8_t> loss_mask;  // (T) 1 = trained on
};

enum class SftLoss {
  kNll,  // -log p
  kDft,  // -p log p with p held constant (DFT: Wu et al. 2025)
};

struct SftStepReport {
  double loss = 0;
  double grad_norm = 0;  // before clipping
  double entropy = 0;    // nats, mean over tokens
  int64_t tokens = 0;
  bool skipped = false;  // not finite; nothing was changed
};

class SftTrainer {
 public:
  struct Options {
    SftLoss loss = SftLoss::kNll;
    double lr = 0;
    int64_t token_budget = 8192;
    int64_t logit_chunk = 1024;
    AdamW::Options optimizer;
  };
  // `model` must outlive it.
  static absl::StatusOr<std::unique_ptr<SftTrainer>> Create(Transformer* model, Options options);
  absl::StatusOr<SftStepReport> Step(absl::Span<const SftExample> examples);
  AdamW& optimizer() { return *optimizer_; }

 private:
  SftTrainer(Transformer* model, Options options) : model_(model), options_(options) {}
  Transformer* const model_;
  const Options options_;
  std::unique_ptr<AdamW> optimizer_;
};

}  // namespace millrace

#endif  // MILLRACE_LEARNER_SFT_TRAINER_H_
