#include "model/read_parameters.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/status_macros.h"
#include "model/adapter.h"
#include "model/kernels/parallel.h"
#include "model/model_checks.h"
#include "model/safetensors.h"

namespace millrace {
namespace {

// The memory that a thread takes on at a time: of two that first touch a page at the same time each
// clears one, and what was just read is converted while it is in the caches.
constexpr uintptr_t kHugePage = 1 << 21;

// Whole pages of memory that is about to be written from end to end.
void AdviseHugePages(void* data, int64_t bytes) {
  const uintptr_t begin =
      (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

at::Tensor ToFloat(const TensorView& view) {
  at::Tensor out = at::empty(view.shape, at::kFloat);
  const absl::Status status =
      ConvertToFloat32(view, absl::MakeSpan(out.data_ptr<float>(), out.numel()));
  TORCH_CHECK(status.ok(), std::string(status.message()));
  return out;
}

// Elements [begin, begin + count) of a tensor, and where their values belong.
struct Piece {
  std::string name;
  int64_t begin = 0, count = 0;
  float* out = nullptr;
};

using Unit = std::vector<Piece>;  // those within a page

// Adds `count` elements of a tensor that belong to `out`, cut where a page ends. Tensors are
// added in the order of their memory.
void AddTensor(const std::string& name, int64_t count, float* out, std::vector<Unit>* units) {
  const auto page_of = [](const float* p) { return reinterpret_cast<uintptr_t>(p) / kHugePage; };
  for (int64_t begin = 0, n; begin < count; begin += n) {
    float* const at = out + begin;
    const uintptr_t page_end = (page_of(at) + 1) * kHugePage;
    n = std::min(count - begin, static_cast<int64_t>((page_end - reinterpret_cast<uintptr_t>(at)) /
                                                     sizeof(float)));
    if (units->empty() || page_of(units->back().back().out) != page_of(at)) units->emplace_back();
    units->back().push_back({name, begin, n, at});
  }
}

absl::Status ReadPiece(const CheckpointReader& reader, const Piece& piece) {
  MR_ASSIGN_OR_RETURN(const TensorView view, reader.Get(piece.name));
  const int64_t size = DtypeSize(view.dtype);
  // In the last part of the place where the floats belong.
  const absl::Span<float> out = absl::MakeSpan(piece.out, piece.count);
  const absl::Span<std::byte> bytes(
      reinterpret_cast<std::byte*>(out.data()) + piece.count * (sizeof(float) - size),
      piece.count * size);
  MR_RETURN_IF_ERROR(reader.Read(piece.name, piece.begin * size, bytes));
  if (view.dtype == "F32") return absl::OkStatus();
  return ConvertToFloat32({view.dtype, {piece.count}, bytes}, out);
}

// On all threads, whichever is free taking the next unit: the copy and the system's first touch of
// the memory are both a matter of bandwidth. `on_elements` hears on this thread of how many are
// done.
absl::Status ReadUnits(const CheckpointReader& reader, const std::vector<Unit>& units,
                       const std::function<void(int64_t elements)>& on_elements) {
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<size_t> next{0};
  std::atomic<int64_t> done{0};
  absl::Mutex mu;
  absl::Status first;
  const auto work = [&](int64_t, int64_t) {
    for (size_t i = next++; i < units.size(); i = next++) {
      for (const Piece& piece : units[i]) {
        const absl::Status status = ReadPiece(reader, piece);
        if (!status.ok()) {
          absl::MutexLock lock(&mu);
          first.Update(status);
          next = units.size();
          return;
        }
        done += piece.count;
      }
      if (std::this_thread::get_id() == caller) on_elements(done);
    }
  };
  at::parallel_for(0, at::get_num_threads(), 1, work);
  return first;
}

class ParameterReader {
 public:
  ParameterReader(const ModelConfig& config, CheckpointReader reader,
                  const std::function<void(double)>& progress)
      : shapes_(ParameterShapes(config)), reader_(std::move(reader)), progress_(progress) {
    for (const ParameterShape& p : shapes_) total_ += p.Elements();
  }
  void SetAdapter(Adapter adapter) { adapter_ = std::move(adapter); }

  absl::StatusOr<at::Tensor> Read(at::Device device) {
    const at::TensorOptions floats = at::TensorOptions().dtype(at::kFloat);
    at::Tensor flat = at::empty({total_}, floats.device(device));
    if (device.is_cpu()) {
      AdviseHugePages(flat.data_ptr(), total_ * static_cast<int64_t>(sizeof(float)));
      MR_RETURN_IF_ERROR(ReadRange(0, shapes_.size(), flat));
    } else {
      MR_RETURN_IF_ERROR(ReadThroughHost(flat));
    }
    Report(total_);
    return flat;
  }

 private:
  // Tensors [first, last) into `out`, one behind the other.
  absl::Status ReadRange(size_t first, size_t last, const at::Tensor& out) {
    std::vector<Unit> units;
    float* at = out.data_ptr<float>();
    for (size_t i = first; i < last; ++i) {
      AddTensor(shapes_[i].name, shapes_[i].Elements(), at, &units);
      at += shapes_[i].Elements();
    }
    const int64_t before = done_;
    MR_RETURN_IF_ERROR(
        ReadUnits(reader_, units, [&](int64_t elements) { Report(before + elements); }));
    int64_t offset = 0;
    for (size_t i = first; i < last; ++i) {
      const int64_t n = shapes_[i].Elements();
      Merge(shapes_[i], out.narrow(0, offset, n));
      offset += n;
    }
    done_ += offset;
    return absl::OkStatus();
  }

  absl::Status ReadThroughHost(const at::Tensor& flat) {
    for (size_t i = 0; i < shapes_.size(); ++i) {
      const int64_t offset = done_, n = shapes_[i].Elements();
      const at::Tensor host = at::empty({n}, at::TensorOptions().dtype(at::kFloat));
      MR_RETURN_IF_ERROR(ReadRange(i, i + 1, host));
      flat.narrow(0, offset, n).copy_(host);
    }
    return absl::OkStatus();
  }

  void Merge(const ParameterShape& p, const at::Tensor& values) const {
    if (!adapter_) return;
    const auto pair = adapter_->pairs().find(p.name);
    if (pair == adapter_->pairs().end()) return;
    values.view(p.shape).addmm_(ToFloat(pair->second.b), ToFloat(pair->second.a), 1,
                                pair->second.scaling);
  }

  // 1 only at the very end, when adapters are merged too.
  void Report(int64_t elements) {
    if (!progress_ || elements <= reported_ || (elements == total_ && done_ < total_)) return;
    reported_ = elements;
    progress_(static_cast<double>(elements) / static_cast<double>(total_));
  }

  const std::vector<ParameterShape> shapes_;
  const CheckpointReader reader_;
  const std::function<void(double)>& progress_;
  std::optional<Adapter> adapter_;
  int64_t total_ = 0, done_ = 0, reported_ = 0;  // elements
};

}  // namespace

absl::StatusOr<at::Tensor> ReadParameters(const ModelConfig& config, const std::string& dir,
                                          at::Device device,
                                          const std::function<void(double fraction)>& progress) {
  MR_ASSIGN_OR_RETURN(const std::string base, BaseModelDir(dir));
  MR_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::Open(base));
  MR_RETURN_IF_ERROR(CheckTensors(config, reader, base));
  ParameterReader parameters(config, std::move(reader), progress);
  if (IsAdapterDir(dir)) {
    MR_ASSIGN_OR_RETURN(Adapter adapter, Adapter::Open(dir, config));
    parameters.SetAdapter(std::move(adapter));
  }
  return parameters.Read(device);
}

}  // namespace millrace
