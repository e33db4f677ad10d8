// The learner's main loop, from the first publish to summary.json. What lies outside the process
// (buffer, weight sync, rollout servers) is reached through ports, so that it runs in a test.
#ifndef MILLRACE_LEARNER_LOOP_H_
#define MILLRACE_LEARNER_LOOP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "buffer/buffer_client.h"
#include "common/config.h"
#include "common/metrics.h"
#include "learner/checkpoint.h"
#include "learner/evaluation_client.h"
#include "learner/learner_metrics.h"
#include "learner/run_log.h"
#include "learner/train_step.h"
#include "model/run_model.h"
#include "model/transformer.h"
#include "weight_sync/publisher.h"

namespace millrace {

// As BufferClient, Publisher, Evaluator and Role have them.
struct LearnerPorts {
  std::function<absl::StatusOr<Batch>(uint64_t step, int64_t version, absl::Duration wait)>
      next_batch;
  std::function<absl::Status(uint64_t step, const std::string& checkpoint)> commit;
  std::function<absl::StatusOr<RewindResult>(uint64_t step)> rewind;
  std::function<absl::Status(int64_t version, bool finished)> set_version;
  std::function<absl::StatusOr<BufferStats>()> stats;
  std::function<absl::Status(int64_t version, absl::Span<const NamedSpan> tensors)> publish;
  std::function<absl::Status(int64_t version, int members, absl::Duration timeout)> wait_activated;
  std::function<void()> finish;
  std::function<absl::StatusOr<EvalOutcome>(const EvalRequest& request)> evaluate;
  std::function<bool()> stopping;
  std::function<void(const std::string& event, const std::string& fields_json)> event;
};

class LearnerLoop {
 public:
  // `run_dir` exists; `metrics` must outlive it.
  LearnerLoop(RunConfig config, std::string run_dir, Metrics* metrics, LearnerPorts ports);
  ~LearnerLoop();

  // Starts or resumes the run and carries it through. OK when it is finished, or when stopping()
  // turned true (the weights are in a checkpoint then).
  absl::Status Run();

  int64_t step() const { return state_.step; }        // done
  int64_t version() const { return state_.version; }  // newest published

 private:
  // Start-up (loop_start.cc).
  absl::Status Start();
  absl::Status LoadModels();
  absl::Status MakeTrainer(const std::string& checkpoint);
  absl::Status WarmUpIfFresh();
  absl::Status WaitForMember();
  absl::StatusOr<std::unique_ptr<Transformer>> InitialModel() const;

  // Steps.
  absl::Status TrainSteps();
  absl::Status OneStep(int64_t step);
  absl::StatusOr<Batch> AwaitBatch(int64_t step);
  absl::Status Publish(int64_t version);
  absl::StatusOr<std::shared_ptr<Checkpointer::Snapshot>> TakeSnapshot(Checkpointer::Memory memory);
  absl::Status SaveCheckpoint();
  absl::Status WriteStepLine(const Batch& batch, const StepReport& report,
                             const std::map<std::string, double>& seconds);

  // Evaluations and the end (loop_end.cc).
  EvalRequest MakeEvalRequest(const std::string& kind, const std::string& mode) const;
  absl::Status EvaluateNow(const std::string& kind);
  absl::Status EvaluateBefore();
  void StartPeriodicEval();
  void JoinPeriodicEval(bool cancel);
  absl::Status Finish();
  absl::Status WriteSummary(const BufferStats& stats);

  bool Stopping() const { return ports_.stopping && ports_.stopping(); }
  void Event(const std::string& event, const nlohmann::json& fields) const;
  std::map<std::string, double> PhaseSeconds() const;

  const RunConfig config_;
  const std::string run_dir_;
  const LearnerPorts ports_;
  RunLog log_;
  LearnerMetrics metrics_;
  TimeSplit time_;
  RunModel run_model_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<Transformer> reference_;  // until the trainer takes it
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Checkpointer> checkpointer_;
  TrainerState state_;
  std::map<std::string, double> earlier_seconds_;  // of the processes before this one
  bool resumed_ = false;
  // False from the start of a step's training until the step is counted and logged: a checkpoint
  // made in between would hold an update whose batch the buffer hands out again.
  bool between_steps_ = true;
  int64_t saved_step_ = -1;  // newest checkpoint
  std::thread periodic_;
  std::atomic<bool> periodic_running_{false};
  std::atomic<bool> periodic_cancel_{false};
};

}  // namespace millrace

#endif  // MILLRACE_LEARNER_LOOP_H_
