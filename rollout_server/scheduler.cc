#include "rollout_server/scheduler.h"

#include <algorithm>

namespace millrace {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

int64_t PromptBlocks(const SampleDemand& demand, int64_t block_tokens) {
  return CeilDiv(demand.prompt_tokens - 1, block_tokens);
}

int64_t OwnBlocks(const SampleDemand& demand, int64_t block_tokens) {
  const int64_t longest = demand.prompt_tokens + demand.max_new_tokens;
  return CeilDiv(longest, block_tokens) - (demand.prompt_tokens - 1) / block_tokens;
}

void Scheduler::Add(uint64_t request, const SampleDemand& demand) {
  entries_[request] = {demand, demand.samples, 0};
  waiting_ += demand.samples;
}

std::vector<Scheduler::Admission> Scheduler::Admit(absl::FunctionRef<bool(uint64_t)> eligible) {
  std::vector<std::pair<uint64_t, Entry*>> order;
  for (auto& [request, entry] : entries_) {
    if (entry.waiting > 0 && eligible(request)) order.push_back({request, &entry});
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.second->demand.priority > b.second->demand.priority;
  });
  std::vector<Admission> admissions;
  for (auto& [request, entry] : order) {
    const int64_t own = OwnBlocks(entry->demand, limits_.block_tokens);
    int64_t count = 0;
    while (entry->waiting > 0 && running_ < limits_.max_batch) {
      const int64_t prompt =
          entry->running == 0 ? PromptBlocks(entry->demand, limits_.block_tokens) : 0;
      if (reserved_blocks_ + prompt + own > limits_.total_blocks) break;
      reserved_blocks_ += prompt + own;
      --entry->waiting;
      --waiting_;
      ++entry->running;
      ++running_;
      ++count;
    }
    if (count > 0) admissions.push_back({request, count});
    if (entry->waiting > 0) break;
  }
  return admissions;
}

void Scheduler::Finish(uint64_t request) {
  const auto found = entries_.find(request);
  if (found == entries_.end() || found->second.running == 0) return;
  Entry& entry = found->second;
  --entry.running;
  --running_;
  reserved_blocks_ -= OwnBlocks(entry.demand, limits_.block_tokens);
  if (entry.running == 0) reserved_blocks_ -= PromptBlocks(entry.demand, limits_.block_tokens);
  EraseIfDone(request);
}

void Scheduler::DropWaiting(uint64_t request) {
  const auto found = entries_.find(request);
  if (found == entries_.end()) return;
  waiting_ -= found->second.waiting;
  found->second.waiting = 0;
  EraseIfDone(request);
}

void Scheduler::EraseIfDone(uint64_t request) {
  const Entry& entry = entries_[request];
  if (entry.running == 0 && entry.waiting == 0) entries_.erase(request);
}

std::vector<int64_t> PlanStep(absl::Span<const int64_t> pending, int64_t prefill_chunk) {
  std::vector<int64_t> take;
  int64_t budget = std::max<int64_t>(prefill_chunk, 1);
  for (int64_t tokens : pending) {
    const int64_t count = tokens <= 1 ? tokens : std::min(tokens, budget);
    if (tokens > 1) budget -= count;
    take.push_back(count);
  }
  return take;
}

}  // namespace millrace
