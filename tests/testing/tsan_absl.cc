// Tells ThreadSanitizer about Abseil's Mutex, CondVar, Notification and BlockingCounter. Debian's
// Abseil is built without the sanitizer, so its locks are invisible and every guarded field looks
// like a race. In the tsan preset this file is part of every program: its definitions come before
// those of the shared library (also for the calls that gRPC makes), report the lock by
// ThreadSanitizer's interface for custom mutexes (sanitizer/tsan_interface.h), and call on.
//
// What happens between a pre and a post call is ignored by the sanitizer. That is needed: Unlock
// runs the waiters' conditions in the thread that unlocks.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace absl {
ABSL_NAMESPACE_BEGIN

namespace {

#define MILLRACE_TEXT_OF(x) #x
#define MILLRACE_TEXT(x) MILLRACE_TEXT_OF(x)

// The library's own function; `name` is its mangled name after the namespace. `prefix`: _ZN, or
// _ZNK for a const member.
template <typename F>
F Next(const char* name, const char* prefix = "_ZN") {
  const std::string space = MILLRACE_TEXT(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string symbol = prefix + ("4absl" + std::to_string(space.size())) + space + name;
  void* found = dlsym(RTLD_NEXT, symbol.c_str());
  if (found == nullptr) {
    std::fprintf(stderr, "tsan_absl: no %s in the shared library of Abseil\n", symbol.c_str());
    std::abort();
  }
  return reinterpret_cast<F>(found);
}
template <typename F>
F NextConst(const char* name) {
  return Next<F>(name, "_ZNK");
}

// The library's functions call each other; only the outermost call is reported.
thread_local int depth = 0;

struct Unlocking {
  explicit Unlocking(void* mutex, unsigned flags = 0) : mutex_(mutex), flags_(flags) {
    if (depth++ == 0) __tsan_mutex_pre_unlock(mutex_, flags_);
  }
  ~Unlocking() {
    if (--depth == 0) __tsan_mutex_post_unlock(mutex_, flags_);
  }
  void* mutex_;
  unsigned flags_;
};
struct Locking {
  explicit Locking(void* mutex, unsigned flags = 0) : mutex_(mutex), flags_(flags) {
    if (depth++ == 0) __tsan_mutex_pre_lock(mutex_, flags_);
  }
  ~Locking() {
    if (--depth > 0) return;
    __tsan_mutex_post_lock(mutex_, flags_ | (got ? 0 : __tsan_mutex_try_lock_failed), 0);
  }
  bool got = true;
  void* mutex_;
  unsigned flags_;
};
// Given up and taken again within one call.
struct Waiting {
  explicit Waiting(void* mutex) : locking_((Release(mutex), mutex)) {}
  static void Release(void* mutex) { Unlocking unlocking(mutex); }
  Locking locking_;
};

}  // namespace

// Memory that held a mutex may hold another one later.
Mutex::~Mutex() {
  static const auto next = Next<void (*)(Mutex*)>("5MutexD1Ev");
  __tsan_mutex_destroy(this, 0);
  next(this);
}

void Mutex::Lock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  static const auto next = Next<void (*)(Mutex*)>("5Mutex4LockEv");
  Locking locking(this);
  next(this);
}

bool Mutex::TryLock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  static const auto next = Next<bool (*)(Mutex*)>("5Mutex7TryLockEv");
  Locking locking(this, __tsan_mutex_try_lock);
  locking.got = next(this);
  return locking.got;
}

void Mutex::Unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  static const auto next = Next<void (*)(Mutex*)>("5Mutex6UnlockEv");
  Unlocking unlocking(this);
  next(this);
}

void Mutex::ReaderLock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  static const auto next = Next<void (*)(Mutex*)>("5Mutex10ReaderLockEv");
  Locking locking(this, __tsan_mutex_read_lock);
  next(this);
}

void Mutex::ReaderUnlock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  static const auto next = Next<void (*)(Mutex*)>("5Mutex12ReaderUnlockEv");
  Unlocking unlocking(this, __tsan_mutex_read_lock);
  next(this);
}

void Mutex::Await(const Condition& condition) {
  static const auto next =
      Next<void (*)(Mutex*, const Condition&)>("5Mutex5AwaitERKNS0_9ConditionE");
  Waiting waiting(this);
  next(this, condition);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static const auto next = Next<bool (*)(Mutex*, const Condition&, Duration)>(
      "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  Waiting waiting(this);
  return next(this, condition, timeout);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static const auto next = Next<bool (*)(Mutex*, const Condition&, Time)>(
      "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  Waiting waiting(this);
  return next(this, condition, deadline);
}

void Mutex::LockWhen(const Condition& condition) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  static const auto next =
      Next<void (*)(Mutex*, const Condition&)>("5Mutex8LockWhenERKNS0_9ConditionE");
  Locking locking(this);
  next(this, condition);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition,
                                Duration timeout) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  static const auto next = Next<bool (*)(Mutex*, const Condition&, Duration)>(
      "5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  Locking locking(this);
  return next(this, condition, timeout);
}

bool Mutex::LockWhenWithDeadline(const Condition& condition,
                                 Time deadline) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  static const auto next = Next<bool (*)(Mutex*, const Condition&, Time)>(
      "5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  Locking locking(this);
  return next(this, condition, deadline);
}

void CondVar::Wait(Mutex* mutex) {
  static const auto next = Next<void (*)(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  Waiting waiting(mutex);
  next(this, mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static const auto next = Next<bool (*)(CondVar*, Mutex*, Duration)>(
      "7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  Waiting waiting(mutex);
  return next(this, mutex, timeout);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const auto next =
      Next<bool (*)(CondVar*, Mutex*, Time)>("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  Waiting waiting(mutex);
  return next(this, mutex, deadline);
}

// Both of these have paths that take no lock: what came before is handed over by an atomic.
void Notification::Notify() {
  static const auto next = Next<void (*)(Notification*)>("12Notification6NotifyEv");
  __tsan_release(this);
  next(this);
}

void Notification::WaitForNotification() const {
  static const auto next =
      NextConst<void (*)(const Notification*)>("12Notification19WaitForNotificationEv");
  next(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static const auto next = NextConst<bool (*)(const Notification*, Duration)>(
      "12Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
  const bool notified = next(this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  static const auto next = NextConst<bool (*)(const Notification*, Time)>(
      "12Notification31WaitForNotificationWithDeadlineENS0_4TimeE");
  const bool notified = next(this, deadline);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool BlockingCounter::DecrementCount() {
  static const auto next = Next<bool (*)(BlockingCounter*)>("15BlockingCounter14DecrementCountEv");
  __tsan_release(this);
  return next(this);
}

void BlockingCounter::Wait() {
  static const auto next = Next<void (*)(BlockingCounter*)>("15BlockingCounter4WaitEv");
  next(this);
  __tsan_acquire(this);
}

ABSL_NAMESPACE_END
}  // namespace absl
