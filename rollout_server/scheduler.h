// Which samples run and how many tokens each adds to a step: plain policy without lock, clock or
// tensors. Not thread-safe.
//
// A sample is admitted only when the blocks of its longest possible end are free beside those of
// all that run, so a running sample never waits for memory and none has to be thrown out.
#ifndef MILLRACE_ROLLOUT_SERVER_SCHEDULER_H_
#define MILLRACE_ROLLOUT_SERVER_SCHEDULER_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace millrace {

struct SchedulerLimits {
  int64_t max_batch = 64;     // samples that run together
  int64_t total_blocks = 0;   // of the KV cache
  int64_t block_tokens = 16;  // of one block
};

// What a request asks for.
struct SampleDemand {
  int64_t prompt_tokens = 1;
  int64_t max_new_tokens = 1;
  int64_t samples = 1;
  int priority = 0;  // higher first
};

// Blocks that the prompt of a request holds once, for all its samples: all its tokens but the last,
// which every sample reads itself.
int64_t PromptBlocks(const SampleDemand& demand, int64_t block_tokens);
// Blocks that one sample may come to hold beyond the full ones of the prompt.
int64_t OwnBlocks(const SampleDemand& demand, int64_t block_tokens);

class Scheduler {
 public:
  struct Admission {
    uint64_t request = 0;
    int64_t samples = 0;
  };
  explicit Scheduler(SchedulerLimits limits) : limits_(limits) {}

  // `request` is new; requests of one priority are served in the order of their numbers.
  void Add(uint64_t request, const SampleDemand& demand);
  // Waiting samples that may start now. Highest priority first, then oldest; the first one that
  // does not fit stops the rest (so that a large request is never overtaken for ever). Requests
  // that are not `eligible` are passed over.
  std::vector<Admission> Admit(absl::FunctionRef<bool(uint64_t request)> eligible);
  // One running sample of `request` ended.
  void Finish(uint64_t request);
  // `request`'s waiting samples will not run. Its running ones are finished one by one.
  void DropWaiting(uint64_t request);

  int64_t running() const { return running_; }
  int64_t waiting() const { return waiting_; }
  int64_t reserved_blocks() const { return reserved_blocks_; }

 private:
  struct Entry {
    SampleDemand demand;
    int64_t waiting = 0;
    int64_t running = 0;
  };
  void EraseIfDone(uint64_t request);

  const SchedulerLimits limits_;
  std::map<uint64_t, Entry> entries_;
  int64_t running_ = 0;
  int64_t waiting_ = 0;
  int64_t reserved_blocks_ = 0;
};

// Tokens that each sequence adds to the next step, from how many it has yet to read. Sequences with
// one are decoding and always go on; the others share `prefill_chunk` in the given order (a later
// one may get 0).
std::vector<int64_t> PlanStep(absl::Span<const int64_t> pending, int64_t prefill_chunk);

}  // namespace millrace

#endif  // MILLRACE_ROLLOUT_SERVER_SCHEDULER_H_
