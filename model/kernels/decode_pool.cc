#include "model/kernels/decode_pool.h"

#include <algorithm>

namespace millrace {
namespace {

constexpr int32_t kClosed = -(1 << 20);
constexpr int kSpins = 2000;  // about 20 to 60 microseconds

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Returns the value once it is no longer `old`: spins first, then sleeps.
template <typename T>
T WaitWhileEqual(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    const T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    Pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

ComputePool::ComputePool(int threads)
    : loops_(new Loop[kMaxLoops]),
      parts_(new Part[kMaxLoops * threads]),
      inside_(kClosed),
      threads_(threads) {
  for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { Work(t); });
}

ComputePool::~ComputePool() {
  stop_.store(true);
  run_.fetch_add(1);
  run_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ComputePool::Run(absl::FunctionRef<void(PoolWorker&)> program) {
  PoolWorker self(this, 0);
  if (threads_ == 1) {
    program(self);
    return;
  }
  for (int64_t i = 0; i < loops_used_; ++i) {
    loops_[i].done.store(0, std::memory_order_relaxed);
    for (int t = 0; t < threads_; ++t) {
      parts_[i * threads_ + t].claimed.store(0, std::memory_order_relaxed);
    }
  }
  program_ = &program;
  inside_.store(0, std::memory_order_release);
  run_.fetch_add(1, std::memory_order_release);
  run_.notify_all();
  program(self);
  loops_used_ = self.loop_;
  // Nobody enters any more; those inside find every loop done and leave.
  inside_.fetch_add(kClosed, std::memory_order_acq_rel);
  int32_t inside = inside_.load(std::memory_order_acquire);
  while (inside != kClosed) inside = WaitWhileEqual(inside_, inside);
}

void ComputePool::Work(int thread) {
  uint32_t seen = 0;
  for (;;) {
    seen = WaitWhileEqual(run_, seen);
    if (stop_.load()) return;
    int32_t inside = inside_.load(std::memory_order_acquire);
    while (inside >= 0 && !inside_.compare_exchange_weak(inside, inside + 1)) {
    }
    if (inside < 0) continue;  // that Run is over already
    PoolWorker self(this, thread);
    (*program_)(self);
    inside_.fetch_sub(1, std::memory_order_acq_rel);
    inside_.notify_all();
  }
}

void ComputePool::FinishItems(Loop* loop, int64_t finished, int64_t count) {
  const uint32_t all = static_cast<uint32_t>(count);
  if (finished > 0) {
    const uint32_t mine = static_cast<uint32_t>(finished);
    if (loop->done.fetch_add(mine, std::memory_order_acq_rel) + mine == all) {
      loop->done.notify_all();
    }
  }
  uint32_t done = loop->done.load(std::memory_order_acquire);
  while (done != all) done = WaitWhileEqual(loop->done, done);
}

}  // namespace millrace
