#include "learner/checkpoint.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "model/safetensors.h"
#include "model/torch_status.h"
#include "nlohmann/json.hpp"

namespace millrace {

struct Checkpointer::Snapshot {
  std::unique_ptr<Transformer> model;
  const Tokenizer* tokenizer = nullptr;
  at::Tensor first, second;  // undefined without an optimizer
  TrainerState state;
};

namespace {

using nlohmann::json;
using Job = Checkpointer::Snapshot;

constexpr int kFormat = 1;
constexpr char kTemporary[] = ".part-";
// The moments, in the format of safetensors but not with its ending: servers (vLLM, SGLang) take
// every *.safetensors of a model's folder for weights.
constexpr char kMomentsFile[] = "optimizer.state";
constexpr char kOldMomentsFile[] = "optimizer.safetensors";  // of earlier checkpoints

absl::Status Errno(const std::string& what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::Status SyncDirectory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd < 0) return Errno(absl::StrCat("open ", path));
  const int result = fsync(fd);
  close(fd);
  return result == 0 ? absl::OkStatus() : Errno(absl::StrCat("sync ", path));
}

std::string DigestOf(const at::Tensor& tensor) {
  return HexDigest(tensor.const_data_ptr(), static_cast<size_t>(tensor.nbytes()));
}

// The moments as one tensor a parameter, "exp_avg.<name>" and "exp_avg_sq.<name>".
absl::Status WriteMoments(const std::string& path, const Transformer& model,
                          const at::Tensor& first, const at::Tensor& second) {
  std::map<std::string, TensorView> tensors;
  for (const auto& [prefix, flat] :
       {std::pair<const char*, const at::Tensor*>{"exp_avg.", &first}, {"exp_avg_sq.", &second}}) {
    const auto* bytes = static_cast<const std::byte*>(flat->const_data_ptr());
    for (const NamedParameter& parameter : model.parameters()) {
      const auto size = static_cast<size_t>(parameter.tensor.numel()) * sizeof(float);
      tensors[absl::StrCat(prefix, parameter.name)] = {
          "F32", parameter.tensor.sizes().vec(), {bytes, size}};
      bytes += size;
    }
  }
  return WriteSafetensors(path, tensors, {{"format_version", absl::StrCat(kFormat)}});
}

json ToJson(const TrainerState& s) {
  return {{"format", kFormat},
          {"step", s.step},
          {"version", s.version},
          {"seed", s.seed},
          {"config_digest", s.config_digest},
          {"optimizer_updates", s.optimizer_updates},
          {"schedule_updates", s.schedule_updates},
          {"skipped_updates", s.skipped_updates},
          {"trained_tokens", s.trained_tokens},
          {"trained_groups", s.trained_groups},
          {"seconds", s.seconds},
          {"dropped", s.dropped}};
}

// Renames `from` over `to`, which may be there already.
absl::Status ReplaceDirectory(const std::string& from, const std::string& to) {
  const std::string old = absl::StrCat(from, ".old");
  if (FileExists(to)) {
    MR_RETURN_IF_ERROR(RemoveRecursively(old));
    if (std::rename(to.c_str(), old.c_str()) != 0) return Errno(absl::StrCat("rename ", to));
  }
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    return Errno(absl::StrCat("rename ", from, " to ", to));
  }
  return RemoveRecursively(old);
}

absl::Status WriteFiles(const std::string& dir, const Job& job) {
  MR_RETURN_IF_ERROR(MakeDirectories(dir));
  MR_RETURN_IF_ERROR(job.model->Save(dir, "F32"));
  MR_RETURN_IF_ERROR(job.tokenizer->Save(dir));
  json trainer = ToJson(job.state);
  if (job.first.defined()) {
    MR_RETURN_IF_ERROR(
        WriteMoments(JoinPath(dir, kMomentsFile), *job.model, job.first, job.second));
    trainer["digests"] = {{"exp_avg", DigestOf(job.first)}, {"exp_avg_sq", DigestOf(job.second)}};
  }
  // Written last: a folder that has it is whole.
  MR_RETURN_IF_ERROR(WriteFileAtomically(JoinPath(dir, "trainer.json"), trainer.dump(1) + "\n"));
  return SyncDirectory(dir);
}

// Names of whole checkpoints, oldest first: by number, for those of step 1000000 and on have a
// digit more.
absl::StatusOr<std::vector<std::string>> WholeCheckpoints(const std::string& dir) {
  std::map<uint64_t, std::string> found;
  MR_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(dir));
  for (const std::string& name : names) {
    absl::string_view number = name;
    uint64_t step = 0;
    if (absl::ConsumePrefix(&number, "step-") && absl::SimpleAtoi(number, &step) &&
        FileExists(JoinPath(JoinPath(dir, name), "trainer.json"))) {
      found[step] = name;
    }
  }
  std::vector<std::string> out;
  for (auto& [step, name] : found) out.push_back(std::move(name));
  return out;
}

// What writers that were killed have left; each may be as large as a checkpoint.
absl::Status RemoveTemporaries(const std::string& dir) {
  MR_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(dir));
  for (const std::string& name : names) {
    if (absl::StartsWith(name, kTemporary)) {
      MR_RETURN_IF_ERROR(RemoveRecursively(JoinPath(dir, name)));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteCheckpoint(const Checkpointer::Options& options, const Job& job) {
  const std::string name = CheckpointName(job.state.step);
  const std::string part = JoinPath(options.dir, absl::StrCat(kTemporary, name));
  MR_RETURN_IF_ERROR(RemoveTemporaries(options.dir));
  if (absl::Status status = WriteFiles(part, job); !status.ok()) {
    RemoveRecursively(part).IgnoreError();  // the first error is the one to tell
    return absl::Status(status.code(), absl::StrCat("checkpoint ", name, ": ", status.message()));
  }
  MR_RETURN_IF_ERROR(ReplaceDirectory(part, JoinPath(options.dir, name)));
  MR_RETURN_IF_ERROR(SyncDirectory(options.dir));
  MR_RETURN_IF_ERROR(WriteFileAtomically(JoinPath(options.dir, "latest"), name + "\n"));
  if (options.on_durable) MR_RETURN_IF_ERROR(options.on_durable(job.state.step, name));
  MR_ASSIGN_OR_RETURN(std::vector<std::string> whole, WholeCheckpoints(options.dir));
  for (size_t i = 0; i + static_cast<size_t>(std::max<int64_t>(options.keep, 1)) < whole.size();
       ++i) {
    if (whole[i] != name) MR_RETURN_IF_ERROR(RemoveRecursively(JoinPath(options.dir, whole[i])));
  }
  return absl::OkStatus();
}

}  // namespace

std::string CheckpointName(int64_t step) { return absl::StrFormat("step-%06d", step); }

std::string HexDigest(const void* data, size_t size) {
  return absl::StrFormat("%016x", XXH3_64bits(data, size));
}

struct Checkpointer::Impl {
  Options options;
  absl::Mutex mu;
  std::shared_ptr<Job> job ABSL_GUARDED_BY(mu);  // waiting to be written
  bool writing ABSL_GUARDED_BY(mu) = false;
  bool closing ABSL_GUARDED_BY(mu) = false;
  int64_t step ABSL_GUARDED_BY(mu) = -1;  // newest asked for
  absl::Status last ABSL_GUARDED_BY(mu);
  std::thread thread;

  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return job == nullptr && !writing; }
  bool Wanted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return job != nullptr || closing; }

  void Run() {
    for (;;) {
      std::shared_ptr<Job> mine;
      {
        absl::MutexLock lock(&mu);
        mu.Await(absl::Condition(this, &Impl::Wanted));
        if (job == nullptr) return;
        mine = std::move(job);
        writing = true;
      }
      const absl::Time start = Clock::Real()->Now();
      absl::Status status = WriteCheckpoint(options, *mine);
      mine.reset();
      if (options.on_written) {
        options.on_written(absl::ToDoubleSeconds(Clock::Real()->Now() - start));
      }
      absl::MutexLock lock(&mu);
      if (!status.ok()) last = std::move(status);
      writing = false;
    }
  }

  // Waits for the write in progress; its error, once.
  absl::Status WaitIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (!Clock::Real()->AwaitWithDeadline(&mu, absl::Condition(this, &Impl::Idle),
                                          Clock::Real()->Now() + options.timeout)) {
      return absl::DeadlineExceededError(
          absl::StrCat("waited ", absl::FormatDuration(options.timeout), " for checkpoint ",
                       CheckpointName(step), " to be written to ", options.dir));
    }
    absl::Status status = std::move(last);
    last = absl::OkStatus();
    return status;
  }
};

Checkpointer::Checkpointer(Options options) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
}

Checkpointer::~Checkpointer() {
  {
    absl::MutexLock lock(&impl_->mu);
    impl_->closing = true;
  }
  impl_->thread.join();
}

absl::StatusOr<std::shared_ptr<Checkpointer::Snapshot>> Checkpointer::Take(const Source& source,
                                                                           TrainerState state) {
  {
    // One snapshot at a time is held in memory.
    absl::MutexLock lock(&impl_->mu);
    MR_RETURN_IF_ERROR(impl_->WaitIdle());
  }
  auto job = std::make_shared<Snapshot>();
  try {
    const bool copy = source.memory == Memory::kCopy;
    MR_ASSIGN_OR_RETURN(job->model, copy ? source.model.Clone() : source.model.Share());
    if (source.optimizer != nullptr) {
      job->first = source.optimizer->first_moment().to(at::kCPU, at::kFloat, false, copy);
      job->second = source.optimizer->second_moment().to(at::kCPU, at::kFloat, false, copy);
      state.optimizer_updates = source.optimizer->updates();
    }
  } catch (const std::exception& e) {
    return StatusFromException(absl::StrCat("snapshot for ", CheckpointName(state.step)), e);
  }
  job->tokenizer = &source.tokenizer;
  job->state = std::move(state);
  return job;
}

void Checkpointer::Write(std::shared_ptr<Snapshot> snapshot) {
  absl::MutexLock lock(&impl_->mu);
  impl_->step = snapshot->state.step;
  impl_->job = std::move(snapshot);
}

absl::Status Checkpointer::Save(const Transformer& model, const Tokenizer& tokenizer,
                                const AdamW* optimizer, TrainerState state) {
  MR_ASSIGN_OR_RETURN(std::shared_ptr<Snapshot> snapshot,
                      Take({model, tokenizer, optimizer}, std::move(state)));
  Write(std::move(snapshot));
  return absl::OkStatus();
}

absl::Status Checkpointer::Wait() {
  absl::MutexLock lock(&impl_->mu);
  return impl_->WaitIdle();
}

absl::StatusOr<std::optional<std::string>> FindLatestCheckpoint(const std::string& dir) {
  if (!FileExists(dir)) return std::optional<std::string>();
  const std::string latest = JoinPath(dir, "latest");
  if (FileExists(latest)) {
    MR_ASSIGN_OR_RETURN(std::string name, ReadFile(latest));
    const std::string path = JoinPath(dir, absl::StripAsciiWhitespace(name));
    if (FileExists(JoinPath(path, "trainer.json"))) return std::optional<std::string>(path);
  }
  MR_ASSIGN_OR_RETURN(std::vector<std::string> whole, WholeCheckpoints(dir));
  if (whole.empty()) return std::optional<std::string>();
  return std::optional<std::string>(JoinPath(dir, whole.back()));
}

absl::StatusOr<TrainerState> ReadTrainerState(const std::string& checkpoint) {
  const std::string path = JoinPath(checkpoint, "trainer.json");
  MR_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  try {
    const json j = json::parse(text);
    if (j.at("format").get<int>() != kFormat) {
      return absl::UnimplementedError(absl::StrCat(path, ": format ", j.at("format").dump(),
                                                   "; this program reads format ", kFormat));
    }
    TrainerState s;
    s.step = j.at("step");
    s.version = j.at("version");
    s.seed = j.at("seed");
    s.config_digest = j.at("config_digest");
    s.optimizer_updates = j.at("optimizer_updates");
    s.schedule_updates = j.at("schedule_updates");
    s.skipped_updates = j.at("skipped_updates");
    s.trained_tokens = j.at("trained_tokens");
    s.trained_groups = j.at("trained_groups");
    s.seconds = j.at("seconds").get<std::map<std::string, double>>();
    s.dropped = j.at("dropped").get<std::map<std::string, uint64_t>>();
    return s;
  } catch (const json::exception& e) {
    return absl::DataLossError(absl::StrCat(path, ": ", e.what()));
  }
}

absl::Status RestoreOptimizer(const std::string& checkpoint, const Transformer& model,
                              const TrainerState& state, AdamW* optimizer) {
  std::string path = JoinPath(checkpoint, kMomentsFile);
  const std::string old_path = JoinPath(checkpoint, kOldMomentsFile);
  if (!FileExists(path) && FileExists(old_path)) path = old_path;
  MR_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::Open(path));
  MR_ASSIGN_OR_RETURN(std::string text, ReadFile(JoinPath(checkpoint, "trainer.json")));
  const json digests = json::parse(text, nullptr, false).value("digests", json::object());
  at::Tensor flat[2];
  const char* const prefixes[2] = {"exp_avg", "exp_avg_sq"};
  for (int k = 0; k < 2; ++k) {
    flat[k] = at::empty({optimizer->first_moment().numel()}, at::kFloat);
    float* out = flat[k].mutable_data_ptr<float>();
    for (const NamedParameter& parameter : model.parameters()) {
      const auto size = static_cast<size_t>(parameter.tensor.numel());
      MR_ASSIGN_OR_RETURN(TensorView view,
                          reader.Get(absl::StrCat(prefixes[k], ".", parameter.name)));
      if (view.bytes.size() != size * sizeof(float)) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": ", prefixes[k], ".", parameter.name, " has ", view.bytes.size(),
                         " bytes, the model needs ", size * sizeof(float)));
      }
      std::memcpy(out, view.bytes.data(), view.bytes.size());
      out += size;
    }
    const std::string digest = DigestOf(flat[k]);
    if (digests.value(prefixes[k], digest) != digest) {
      return absl::DataLossError(absl::StrCat(path, ": ", prefixes[k], " has digest ", digest,
                                              ", trainer.json says ",
                                              digests.value(prefixes[k], "")));
    }
  }
  return optimizer->Restore(state.optimizer_updates, flat[0], flat[1]);
}

}  // namespace millrace
