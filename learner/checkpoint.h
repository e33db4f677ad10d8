// Checkpoints of a run: <run>/checkpoints/step-000016/ with the model in Hugging Face layout
// (fp32), the tokenizer, optimizer.state (moments, F32) and trainer.json; `latest` names the
// newest. Nothing but the model's weights ends in .safetensors, so that servers load the folder as
// it is. Layout and fields: docs/formats.md, "Checkpoint".
//
// A checkpoint is written into a temporary folder and renamed, so it is whole or absent; `latest`
// changes after that; the buffer hears of it after that.
#ifndef MILLRACE_LEARNER_CHECKPOINT_H_
#define MILLRACE_LEARNER_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "learner/optimizer.h"
#include "model/tokenizer.h"
#include "model/transformer.h"

namespace millrace {

// Everything but tensors that a resumed run needs.
struct TrainerState {
  int64_t step = 0;     // learner steps done
  int64_t version = 0;  // of the weights saved
  int64_t seed = 0;
  std::string config_digest;      // XXH3-64, hex, of the printed config
  int64_t optimizer_updates = 0;  // applied
  int64_t schedule_updates = 0;   // asked for
  int64_t skipped_updates = 0;
  int64_t trained_tokens = 0;
  int64_t trained_groups = 0;
  std::map<std::string, double> seconds;    // by phase, since the start of the run
  std::map<std::string, uint64_t> dropped;  // groups, by reason
};

std::string CheckpointName(int64_t step);  // "step-000016"
// XXH3-64 as 16 hex digits.
std::string HexDigest(const void* data, size_t size);

// Writes checkpoints on a thread of its own. Thread-safe.
class Checkpointer {
 public:
  struct Options {
    std::string dir;                             // <run>/checkpoints
    int64_t keep = 2;                            // newest ones that stay
    absl::Duration timeout = absl::Minutes(10);  // of one write
    // Called on the writing thread once checkpoint `name` of `step` is durable. An error is handed
    // to the next Save or Wait.
    std::function<absl::Status(int64_t step, const std::string& name)> on_durable;
    std::function<void(double seconds)> on_written;  // may be empty
  };
  explicit Checkpointer(Options options);
  ~Checkpointer();  // waits for the write in progress

  // Copies weights and moments for Write(), or, with kShare, refers to them: then nobody may change
  // them until the write ended. Waits for the write before it and returns its error, if
  // any. `optimizer` may be null (no moments are saved); `tokenizer` must live until the write
  // ended.
  struct Snapshot;
  enum class Memory { kCopy, kShare };
  struct Source {
    const Transformer& model;
    const Tokenizer& tokenizer;
    const AdamW* optimizer;
    Memory memory = Memory::kCopy;
  };
  absl::StatusOr<std::shared_ptr<Snapshot>> Take(const Source& source, TrainerState state);
  // Starts writing in the background.
  void Write(std::shared_ptr<Snapshot> snapshot);
  // Take and Write.
  absl::Status Save(const Transformer& model, const Tokenizer& tokenizer, const AdamW* optimizer,
                    TrainerState state);
  // Until nothing is being written. Returns the error of the last write once.
  absl::Status Wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Full path of the checkpoint that `latest` names, or, when that is damaged, of the newest whole
// one; nullopt when there is none.
absl::StatusOr<std::optional<std::string>> FindLatestCheckpoint(const std::string& dir);
// Reads trainer.json. DATA_LOSS names a damaged file.
absl::StatusOr<TrainerState> ReadTrainerState(const std::string& checkpoint);
// Moments into `optimizer`, checked against their digests; from optimizer.safetensors where an
// earlier program wrote the checkpoint. The model itself: Transformer::Load.
absl::Status RestoreOptimizer(const std::string& checkpoint, const Transformer& model,
                              const TrainerState& state, AdamW* optimizer);

}  // namespace millrace

#endif  // MILLRACE_LEARNER_CHECKPOINT_H_
