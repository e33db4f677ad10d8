#include "learner/evaluation_client.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/grpc_util.h"
#include "common/status_macros.h"
#include "evaluation/interval.h"
#include "proto/rollout.grpc.pb.h"

namespace millrace {
namespace {

struct Shard {
  uint64_t begin = 0, end = 0;  // problem ids
  int64_t attempts = 0;
  std::string last_member;
};

struct Sums {
  std::vector<ProblemResult> problems;  // by problem id
  std::vector<int> baseline;            // by problem id: -1 none, 0 wrong, 1 right
  int64_t version = -1;
  int64_t tokens = 0;
  int64_t truncated = 0;
};

// One evaluation: workers, one a member, take shards from a queue.
class Evaluation {
 public:
  Evaluation(const Evaluator::Options& options, const EvalRequest& request)
      : options_(options), request_(request), deadline_(Clock::Real()->Now() + request.timeout) {
    const auto problems = static_cast<uint64_t>(request.problems);
    const auto size = static_cast<uint64_t>(std::max<int64_t>(request.shard_problems, 1));
    for (uint64_t begin = 0; begin < problems; begin += size) {
      queue_.push_back({begin, std::min(begin + size, problems), 0, ""});
    }
    left_ = static_cast<int64_t>(queue_.size());
    sums_.problems.resize(problems);
    sums_.baseline.assign(problems, -1);
  }

  absl::StatusOr<EvalOutcome> Run() {
    const absl::Time start = Clock::Real()->Now();
    absl::Status status = Supervise();
    std::vector<std::thread> threads;
    {
      absl::MutexLock lock(&mu_);
      ended_ = true;
      for (grpc::ClientContext* call : calls_) call->TryCancel();
      threads = std::move(threads_);
    }
    for (std::thread& thread : threads) thread.join();
    MR_RETURN_IF_ERROR(status);
    EvalOutcome outcome = Outcome();
    outcome.seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - start);
    return outcome;
  }

 private:
  // Starts a worker for every member that has none, until all shards are done or given up.
  absl::Status Supervise() {
    for (;;) {
      const std::vector<MemberInfo> members = options_.members();
      absl::MutexLock lock(&mu_);
      members_.clear();
      for (const MemberInfo& member : members) {
        members_.push_back(absl::StrCat(member.member, " (version ", member.active_version, ")"));
        if (left_ == 0 || member.control_address.empty()) continue;
        if (working_.insert(member.control_address).second) {
          threads_.emplace_back([this, member] { Work(member); });
        }
      }
      // Wakes up now and then, to see new members and a wish to stop.
      Clock::Real()->AwaitWithDeadline(&mu_, absl::Condition(this, &Evaluation::Over),
                                       Clock::Real()->Now() + absl::Milliseconds(200));
      if (!failure_.ok()) return failure_;
      if (left_ == 0) return absl::OkStatus();
      if (request_.cancelled && request_.cancelled()) {
        return absl::CancelledError(absl::StrCat(Name(), " was stopped"));
      }
      if (Clock::Real()->Now() >= deadline_) {
        return absl::DeadlineExceededError(
            absl::StrCat(Name(), " did not end in ", absl::FormatDuration(request_.timeout), ": ",
                         done_, " of ", request_.problems, " problems were answered; members: ",
                         members_.empty() ? "none" : absl::StrJoin(members_, ", "),
                         "; last error: ", last_error_.empty() ? "none" : last_error_));
      }
    }
  }

  bool Over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return left_ == 0 || !failure_.ok(); }
  bool Ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_; }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ended_ || !queue_.empty() || left_ == 0;
  }

  std::string Name() const {
    return absl::StrCat("evaluation \"", request_.kind, "\" (", request_.mode, ", ",
                        request_.problems, " problems, version ", request_.version, ")");
  }

  void Work(const MemberInfo& member) {
    auto stub = v1::Rollout::NewStub(MakeChannel(member.control_address));
    for (;;) {
      Shard shard;
      {
        absl::MutexLock lock(&mu_);
        mu_.Await(absl::Condition(this, &Evaluation::HasWork));
        if (ended_ || queue_.empty()) break;
        shard = queue_.front();
        queue_.pop_front();
      }
      std::vector<v1::EvaluateResult> results;
      absl::Status status = Call(*stub, member, shard, &results);
      if (status.ok()) {
        Add(shard, results);
        continue;
      }
      absl::MutexLock lock(&mu_);
      if (ended_) break;
      GiveBack(std::move(shard), member, status);
      Clock::Real()->AwaitWithDeadline(&mu_, absl::Condition(this, &Evaluation::Ended),
                                       Clock::Real()->Now() + options_.retry_pause);
      // The member list is asked again: it may be gone, or back under another address.
      working_.erase(member.control_address);
      break;
    }
  }

  void GiveBack(Shard shard, const MemberInfo& member, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    last_error_ = absl::StrCat(member.member, ": ", status.ToString());
    ++shard.attempts;
    shard.last_member = member.member;
    if (shard.attempts >= request_.max_attempts || status.code() == absl::StatusCode::kNotFound ||
        status.code() == absl::StatusCode::kInvalidArgument) {
      failure_ = absl::Status(
          status.code(), absl::StrCat(Name(), ": problems ", shard.begin, "..", shard.end - 1,
                                      " failed ", shard.attempts, " times; last: ", last_error_));
    }
    queue_.push_back(std::move(shard));
  }

  v1::EvaluateRequest MakeRequest(const Shard& shard) const {
    v1::EvaluateRequest request;
    request.set_task(options_.task);
    request.set_split("eval");
    for (uint64_t id = shard.begin; id < shard.end; ++id) request.add_problem_ids(id);
    request.set_samples(static_cast<uint32_t>(request_.samples));
    v1::Sampling* sampling = request.mutable_sampling();
    sampling->set_temperature(static_cast<float>(request_.temperature));
    sampling->set_top_k(static_cast<uint32_t>(request_.top_k));
    sampling->set_top_p(static_cast<float>(request_.top_p));
    sampling->set_max_new_tokens(static_cast<uint32_t>(request_.max_new_tokens));
    sampling->set_seed(request_.seed);
    request.set_version(request_.version);
    request.set_wait_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.activate_wait)));
    return request;
  }

  absl::Status Call(v1::Rollout::Stub& stub, const MemberInfo& member, const Shard& shard,
                    std::vector<v1::EvaluateResult>* results) {
    grpc::ClientContext context;
    SetDeadline(&context, std::min(options_.shard_timeout, deadline_ - Clock::Real()->Now()));
    {
      absl::MutexLock lock(&mu_);
      if (ended_) return absl::CancelledError("evaluation ended");
      calls_.insert(&context);
    }
    auto stream = stub.Evaluate(&context, MakeRequest(shard));
    v1::EvaluateResult result;
    while (stream->Read(&result)) results->push_back(result);
    absl::Status status =
        FromGrpc(stream->Finish(),
                 absl::StrCat("Evaluate on ", member.member, " at ", member.control_address,
                              ", problems ", shard.begin, "..", shard.end - 1));
    {
      absl::MutexLock lock(&mu_);
      calls_.erase(&context);
    }
    MR_RETURN_IF_ERROR(status);
    std::set<std::pair<uint64_t, uint32_t>> seen;
    for (const v1::EvaluateResult& r : *results) {
      if (r.problem_id() < shard.begin || r.problem_id() >= shard.end ||
          r.sample() >= static_cast<uint32_t>(request_.samples) ||
          !seen.emplace(r.problem_id(), r.sample()).second) {
        return absl::InternalError(absl::StrCat(member.member, " sent problem ", r.problem_id(),
                                                " sample ", r.sample(),
                                                ", which was not asked for or came twice"));
      }
    }
    const uint64_t wanted = (shard.end - shard.begin) * static_cast<uint64_t>(request_.samples);
    if (seen.size() != wanted) {
      return absl::InternalError(
          absl::StrCat(member.member, " sent ", seen.size(), " of ", wanted, " samples"));
    }
    return absl::OkStatus();
  }

  void Add(const Shard& shard, const std::vector<v1::EvaluateResult>& results) {
    int64_t done = 0;
    {
      absl::MutexLock lock(&mu_);
      for (const v1::EvaluateResult& r : results) {
        ProblemResult& problem = sums_.problems[r.problem_id()];
        ++problem.samples;
        problem.correct += r.correct();
        if (r.has_baseline()) sums_.baseline[r.problem_id()] = r.baseline_correct();
        sums_.version = std::max<int64_t>(sums_.version, r.version());
        sums_.tokens += r.tokens();
        sums_.truncated += r.truncated();
      }
      done_ += static_cast<int64_t>(shard.end - shard.begin);
      done = done_;
    }
    if (options_.progress) {
      options_.progress(request_, done, request_.problems);
    }
    // Last, so that the evaluation does not end before its progress was told.
    absl::MutexLock lock(&mu_);
    --left_;
  }

  EvalOutcome Outcome() {
    absl::MutexLock lock(&mu_);
    const Proportion p = ClusteredProportion(sums_.problems);
    EvalOutcome out;
    out.request = request_;
    out.version = sums_.version;
    out.samples = p.samples;
    out.correct = p.correct;
    out.accuracy = p.accuracy;
    out.low = p.interval.low;
    out.high = p.interval.high;
    for (int right : sums_.baseline) {
      out.has_baseline |= right >= 0;
      out.baseline_correct += right > 0;
    }
    if (out.has_baseline) {
      out.baseline_accuracy =
          static_cast<double>(out.baseline_correct) / static_cast<double>(request_.problems);
    }
    out.tokens_mean =
        static_cast<double>(sums_.tokens) / static_cast<double>(std::max<int64_t>(p.samples, 1));
    out.truncated = sums_.truncated;
    return out;
  }

  const Evaluator::Options& options_;
  const EvalRequest request_;
  const absl::Time deadline_;
  absl::Mutex mu_;
  std::deque<Shard> queue_ ABSL_GUARDED_BY(mu_);
  int64_t left_ ABSL_GUARDED_BY(mu_) = 0;  // shards not done
  int64_t done_ ABSL_GUARDED_BY(mu_) = 0;  // problems
  Sums sums_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::string last_error_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> members_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> working_ ABSL_GUARDED_BY(mu_);  // control addresses with a worker
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

absl::StatusOr<EvalOutcome> Evaluator::Run(const EvalRequest& request) {
  return Evaluation(options_, request).Run();
}

}  // namespace millrace
