// Loading a checkpoint (headers, checks, fp32 weights ready) against plain read() of the same files
// from the disk cache into memory of the size that loading has to fill, alternating. The memory is
// fresh in both, and wanted in huge pages; where the weights take more of it than the files (bf16
// becomes fp32) the reader touches the rest, so that the system has the same number of pages to
// clear for both. As many threads on both sides; beside it the reader on one thread, and over and
// over into one small buffer that stays in the processor's caches, which needs no memory at all.
// Neither side's time has the giving back of memory in it. Rates count the files' bytes. Beside the
// times there is the processors' work, which a busy machine does not stretch. Without
// --model a checkpoint of random weights in the shape is written first. Prints each round; the last
// line is JSON: the best rate of each, the median of the rounds' ratios, the rounds' rates.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "bench/shapes.h"
#include "common/status_macros.h"
#include "model/inspect.h"
#include "model/transformer.h"

namespace millrace {
namespace {

struct Flags {
  std::string shape = "smollm2";
  std::string model;
  std::string dtype = "F32";
  int threads = 0;
  int rounds = 5;
};

constexpr size_t kPiece = 1 << 20, kPage = 4096, kHugePage = 1 << 21;

// A model folder's weights' files, open.
class Files {
 public:
  static absl::StatusOr<std::unique_ptr<Files>> Open(const std::string& dir) {
    auto files = std::make_unique<Files>();
    for (const auto& entry : std::filesystem::directory_iterator(dir)) {
      if (entry.path().extension() != ".safetensors") continue;
      const int fd = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0) return absl::NotFoundError(entry.path().string());
      files->fds_.push_back(fd);
      const size_t size = std::filesystem::file_size(entry.path());
      for (size_t at = 0; at < size; at += kPiece) {
        files->pieces_.push_back({fd, at, std::min(kPiece, size - at)});
      }
    }
    return files;
  }
  ~Files() {
    for (const int fd : fds_) close(fd);
  }

  struct Piece {
    int fd = -1;
    size_t at = 0, size = 0;
  };
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  std::vector<int> fds_;
  std::vector<Piece> pieces_;
};

struct Cost {
  double seconds = 0;
  double cpu_seconds = 0;  // of all threads, the system's work for them included
};

// What has been spent since it was made.
class Meter {
 public:
  Cost Read() const {
    return {absl::ToDoubleSeconds(absl::Now() - begin_), CpuSeconds() - cpu_begin_};
  }

 private:
  static double CpuSeconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  const absl::Time begin_ = absl::Now();
  const double cpu_begin_ = CpuSeconds();
};

// Memory that nobody has touched.
class FreshMemory {
 public:
  explicit FreshMemory(size_t size) : size_(size) {
    data_ = static_cast<char*>(
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (data_ == MAP_FAILED) abort();
    madvise(data_, size, MADV_HUGEPAGE);
  }
  FreshMemory(const FreshMemory&) = delete;
  FreshMemory& operator=(const FreshMemory&) = delete;
  ~FreshMemory() { munmap(data_, size_); }
  char* data() const { return data_; }

 private:
  const size_t size_;
  char* data_;
};

bool ReadPiece(const Files::Piece& piece, char* out) {
  for (size_t done = 0; done < piece.size;) {
    const ssize_t n =
        pread(piece.fd, out + done, piece.size - done, static_cast<off_t>(piece.at + done));
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

// The cost of reading everything into fresh memory, `factor` times as much as there is to read.
absl::StatusOr<Cost> ReadIntoFreshMemory(const Files& files, size_t factor, int threads) {
  const std::vector<Files::Piece>& pieces = files.pieces();
  const FreshMemory memory(pieces.size() * kPiece * factor + kHugePage);
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  const auto work = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++) {
      char* out = memory.data() + i * kPiece * factor;
      if (!ReadPiece(pieces[i], out)) failed = true;
      for (size_t at = kPiece; at < kPiece * factor; at += kPage) out[at] = 1;
    }
  };
  const Meter meter;
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  const Cost cost = meter.Read();
  if (failed) return absl::UnknownError("reading the weights' files failed");
  return cost;
}

absl::StatusOr<Cost> ReadIntoSmallBuffer(const Files& files) {
  std::vector<char> buffer(kPiece);
  const Meter meter;
  for (const Files::Piece& piece : files.pieces()) {
    if (!ReadPiece(piece, buffer.data())) return absl::UnknownError("reading failed");
  }
  return meter.Read();
}

absl::StatusOr<Cost> LoadAll(const std::string& dir) {
  const Meter meter;
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<Transformer> model, Transformer::Load(dir, at::kCPU));
  return meter.Read();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::Status Measure(const Flags& flags, const std::string& dir) {
  MR_ASSIGN_OR_RETURN(const ModelSummary summary, InspectModel(dir));
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<Files> files, Files::Open(dir));
  const int threads = at::get_num_threads();
  const auto weights = static_cast<size_t>(summary.parameters) * sizeof(float);
  const size_t factor = std::max<size_t>(1, weights / static_cast<size_t>(summary.tensor_bytes));
  const auto rate = [&](double seconds) {
    return static_cast<double>(summary.file_bytes) / seconds / 1e9;
  };
  MR_RETURN_IF_ERROR(ReadIntoSmallBuffer(*files).status());  // into the disk cache
  std::vector<double> load, read, read_one, small, ratio, ratio_one, cpu_ratio;
  for (int round = 0; round < flags.rounds; ++round) {
    MR_ASSIGN_OR_RETURN(const Cost of_small, ReadIntoSmallBuffer(*files));
    MR_ASSIGN_OR_RETURN(const Cost of_one, ReadIntoFreshMemory(*files, factor, 1));
    MR_ASSIGN_OR_RETURN(const Cost of_read, ReadIntoFreshMemory(*files, factor, threads));
    MR_ASSIGN_OR_RETURN(const Cost of_load, LoadAll(dir));
    load.push_back(rate(of_load.seconds));
    read.push_back(rate(of_read.seconds));
    read_one.push_back(rate(of_one.seconds));
    small.push_back(rate(of_small.seconds));
    ratio.push_back(of_read.seconds / of_load.seconds);
    ratio_one.push_back(of_one.seconds / of_load.seconds);
    cpu_ratio.push_back(of_read.cpu_seconds / of_load.cpu_seconds);
    std::printf(
        "round %d: load %.2f GB/s (%.3f CPU s), read into fresh memory %.2f (%.3f CPU s; one "
        "thread %.2f GB/s), into a small buffer %.2f\n",
        round, load.back(), of_load.cpu_seconds, read.back(), of_read.cpu_seconds, read_one.back(),
        small.back());
    std::fflush(stdout);
  }
  const auto best = [](const std::vector<double>& v) {
    return *std::max_element(v.begin(), v.end());
  };
  const nlohmann::json json = {{"file_bytes", summary.file_bytes},
                               {"weight_bytes", weights},
                               {"threads", threads},
                               {"load_gb_s", best(load)},
                               {"read_gb_s", best(read)},
                               {"read_one_thread_gb_s", best(read_one)},
                               {"read_small_buffer_gb_s", best(small)},
                               {"ratio_median", Median(ratio)},
                               {"ratio_one_thread_median", Median(ratio_one)},
                               {"cpu_ratio_median", Median(cpu_ratio)},
                               {"load_rounds", load},
                               {"read_rounds", read}};
  std::printf("%s\n", json.dump().c_str());
  return absl::OkStatus();
}

absl::Status Run(const Flags& flags) {
  if (!flags.model.empty()) return Measure(flags, flags.model);
  std::string dir = std::filesystem::temp_directory_path() / "millrace-load-XXXXXX";
  if (mkdtemp(dir.data()) == nullptr) return absl::UnknownError("mkdtemp " + dir);
  absl::Status status = [&]() -> absl::Status {
    MR_ASSIGN_OR_RETURN(const auto model,
                        Transformer::Create(BenchShape(flags.shape), 1, at::kCPU));
    return model->Save(dir, flags.dtype);
  }();
  if (status.ok()) status = Measure(flags, dir);
  std::filesystem::remove_all(dir);
  return status;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  millrace::Flags flags;
  CLI::App app("Loading of a checkpoint against reading its files");
  app.add_option("--shape", flags.shape, "tiny or smollm2, random weights")
      ->check(CLI::IsMember({"tiny", "smollm2"}));
  app.add_option("--model", flags.model, "Hugging Face folder instead of a shape");
  app.add_option("--dtype", flags.dtype, "of the written weights")
      ->check(CLI::IsMember({"F32", "BF16"}));
  app.add_option("--threads", flags.threads, "0 = as LibTorch chooses");
  app.add_option("--rounds", flags.rounds, "of one read of each kind and one load")
      ->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  if (flags.threads > 0) at::set_num_threads(flags.threads);
  const absl::Status status = millrace::Run(flags);
  if (status.ok()) return 0;
  spdlog::critical("{}", status.ToString());
  return 1;
}
