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

// What a thread takes on at a time, and what it converts at a time: as fp32 that stays in a core's
// second cache.
constexpr int64_t kPieceElements = 1 << 20;
constexpr int64_t kConvertElements = 1 << 16;

// Whole pages of memory that is about to be written from end to end.
void AdviseHugePages(void* data, int64_t bytes) {
  constexpr uintptr_t kPage = 1 << 21;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / kPage * kPage;
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

absl::Status ReadPiece(const CheckpointReader& reader, const Piece& piece,
                       std::vector<std::byte>* buffer) {
  MR_ASSIGN_OR_RETURN(const TensorView view, reader.Get(piece.name));
  const int64_t size = DtypeSize(view.dtype);
  if (view.dtype == "F32") {
    return reader.Read(piece.name, piece.begin * size,
                       absl::MakeSpan(reinterpret_cast<std::byte*>(piece.out), piece.count * size));
  }
  buffer->resize(kConvertElements * size);
  for (int64_t at = 0, n; at < piece.count; at += n) {
    n = std::min(kConvertElements, piece.count - at);
    const absl::Span<std::byte> bytes = absl::MakeSpan(buffer->data(), n * size);
    MR_RETURN_IF_ERROR(reader.Read(piece.name, (piece.begin + at) * size, bytes));
    MR_RETURN_IF_ERROR(
        ConvertToFloat32({view.dtype, {n}, bytes}, absl::MakeSpan(piece.out + at, n)));
  }
  return absl::OkStatus();
}

// On all threads, whichever is free taking the next piece: the copy and the system's first touch of
// the memory are both a matter of bandwidth. `on_elements` hears on this thread of how many are
// done.
absl::Status ReadPieces(const CheckpointReader& reader, const std::vector<Piece>& pieces,
                        const std::function<void(int64_t elements)>& on_elements) {
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<size_t> next{0};
  std::atomic<int64_t> done{0};
  absl::Mutex mu;
  absl::Status first;
  const auto work = [&](int64_t, int64_t) {
    std::vector<std::byte> buffer;
    for (size_t i = next++; i < pieces.size(); i = next++) {
      const absl::Status status = ReadPiece(reader, pieces[i], &buffer);
      if (!status.ok()) {
        absl::MutexLock lock(&mu);
        first.Update(status);
        next = pieces.size();
        return;
      }
      done += pieces[i].count;
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
    std::vector<Piece> pieces;
    float* at = out.data_ptr<float>();
    for (size_t i = first; i < last; ++i) {
      const int64_t n = shapes_[i].Elements();
      for (int64_t begin = 0; begin < n; begin += kPieceElements) {
        pieces.push_back({shapes_[i].name, begin, std::min(kPieceElements, n - begin), at + begin});
      }
      at += n;
    }
    const int64_t before = done_;
    MR_RETURN_IF_ERROR(
        ReadPieces(reader_, pieces, [&](int64_t elements) { Report(before + elements); }));
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
