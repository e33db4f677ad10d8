// Threads for one decode step: every thread runs the same program of parallel loops, and a loop is
// over when its items are done, not when all threads have come by. A thread that the machine has
// put aside (other processes on the same cores) delays a step only by the item that it holds.
//
//   pool.Run([&](PoolWorker& worker) {
//     worker.For(rows, [&](int64_t row) { ... });   // items are claimed one by one
//     worker.For(panels, [&](int64_t panel) { ... });  // starts when all rows are done
//   });
//
// Each thread claims the items of its own part of a loop in order, so that it can fetch ahead, and
// then what is left of the others'. Waiting spins for some tens of microseconds and then sleeps, so
// that several processes can share a machine. One Run at a time; not thread-safe.
#ifndef MILLRACE_MODEL_KERNELS_DECODE_POOL_H_
#define MILLRACE_MODEL_KERNELS_DECODE_POOL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace millrace {

class ComputePool;

// One thread's place in the program of a Run.
class PoolWorker {
 public:
  int thread() const { return thread_; }  // 0 .. threads-1
  // Every thread must call the same loops with the same counts in the same order.
  template <typename F>
  void For(int64_t count, const F& body);

 private:
  friend class ComputePool;
  PoolWorker(ComputePool* pool, int thread) : pool_(pool), thread_(thread) {}
  ComputePool* pool_;
  int thread_;
  int64_t loop_ = 0;
};

class ComputePool {
 public:
  static constexpr int64_t kMaxLoops = 2048;  // of one Run
  explicit ComputePool(int threads);          // the calling thread is one of them
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;
  int threads() const { return threads_; }
  void Run(absl::FunctionRef<void(PoolWorker&)> program);

 private:
  friend class PoolWorker;
  struct alignas(64) Part {
    std::atomic<int64_t> claimed{0};
  };
  struct alignas(64) Loop {
    std::atomic<uint32_t> done{0};
  };
  void Work(int thread);
  void FinishItems(Loop* loop, int64_t finished, int64_t count);

  std::unique_ptr<Loop[]> loops_;
  std::unique_ptr<Part[]> parts_;  // (loops, threads)
  int64_t loops_used_ = 0;
  const absl::FunctionRef<void(PoolWorker&)>* program_ = nullptr;
  std::atomic<uint32_t> run_{0};  // counts Runs; workers wait for it to change
  std::atomic<int32_t> inside_;   // workers inside the program; far below zero when it is closed
  std::atomic<bool> stop_{false};
  const int threads_;
  std::vector<std::thread> workers_;
};

template <typename F>
void PoolWorker::For(int64_t count, const F& body) {
  if (pool_->threads() == 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  const int64_t threads = pool_->threads();
  ComputePool::Loop& loop = pool_->loops_[loop_];
  ComputePool::Part* parts = &pool_->parts_[loop_ * threads];
  ++loop_;
  int64_t finished = 0;
  for (int64_t i = 0; i < threads; ++i) {
    const int64_t part = (thread_ + i) % threads;
    const int64_t begin = count * part / threads, end = count * (part + 1) / threads;
    for (;;) {
      const int64_t item = begin + parts[part].claimed.fetch_add(1, std::memory_order_relaxed);
      if (item >= end) break;
      body(item);
      ++finished;
    }
  }
  pool_->FinishItems(&loop, finished, count);
}

}  // namespace millrace

#endif  // MILLRACE_MODEL_KERNELS_DECODE_POOL_H_
