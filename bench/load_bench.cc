// Loading a checkpoint (headers, checks, fp32 weights ready) against plain read() of the same files
// from the disk cache, alternating: into fresh memory of the files' size, which is what loading is
// bound by (the system clears every page of it first), and over and over into one small buffer that
// stays in the processor's caches. Rates count the files' bytes. Without --model a checkpoint of
// random weights in the shape is written first. Prints each round; the last line is JSON with the
// best of all three and the medians of the rounds' ratios.
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
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
  int rounds = 5;
};

constexpr size_t kPiece = 1 << 20;

// Seconds to read all weights' files of a folder, into fresh memory or into one piece's worth.
absl::StatusOr<double> ReadAll(const std::string& dir, size_t file_bytes, bool fresh) {
  const std::unique_ptr<char, decltype(&free)> buffer(
      static_cast<char*>(malloc(fresh ? file_bytes + kPiece : kPiece)), &free);
  const absl::Time begin = absl::Now();
  char* at = buffer.get();
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.path().extension() != ".safetensors") continue;
    const int fd = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return absl::NotFoundError(entry.path().string());
    ssize_t n = 0;
    while ((n = read(fd, at, kPiece)) > 0) at += fresh ? n : 0;
    close(fd);
    if (n < 0) return absl::UnknownError(entry.path().string());
  }
  return absl::ToDoubleSeconds(absl::Now() - begin);
}

absl::StatusOr<double> LoadAll(const std::string& dir) {
  const absl::Time begin = absl::Now();
  MR_RETURN_IF_ERROR(Transformer::Load(dir, at::kCPU).status());
  return absl::ToDoubleSeconds(absl::Now() - begin);
}

absl::Status Measure(const Flags& flags, const std::string& dir) {
  MR_ASSIGN_OR_RETURN(const ModelSummary summary, InspectModel(dir));
  const size_t size = static_cast<size_t>(summary.file_bytes);
  const auto rate = [&](double seconds) { return static_cast<double>(size) / seconds / 1e9; };
  // Into the disk cache.
  MR_RETURN_IF_ERROR(ReadAll(dir, size, /*fresh=*/false).status());
  double best_fresh = 1e30, best_small = 1e30, best_load = 1e30;
  std::vector<double> to_fresh, to_small;
  for (int round = 0; round < flags.rounds; ++round) {
    MR_ASSIGN_OR_RETURN(const double small, ReadAll(dir, size, /*fresh=*/false));
    MR_ASSIGN_OR_RETURN(const double fresh, ReadAll(dir, size, /*fresh=*/true));
    MR_ASSIGN_OR_RETURN(const double load, LoadAll(dir));
    std::printf("round %d: load %.2f GB/s, read into fresh memory %.2f, into a small buffer %.2f\n",
                round, rate(load), rate(fresh), rate(small));
    best_fresh = std::min(best_fresh, fresh);
    best_small = std::min(best_small, small);
    best_load = std::min(best_load, load);
    to_fresh.push_back(fresh / load);
    to_small.push_back(small / load);
  }
  std::sort(to_fresh.begin(), to_fresh.end());
  std::sort(to_small.begin(), to_small.end());
  std::printf(
      "{\"file_bytes\": %zu, \"load_gb_s\": %.3f, \"read_fresh_gb_s\": %.3f, "
      "\"read_small_gb_s\": %.3f, \"ratio_fresh_median\": %.3f, \"ratio_small_median\": %.3f}\n",
      size, rate(best_load), rate(best_fresh), rate(best_small), to_fresh[to_fresh.size() / 2],
      to_small[to_small.size() / 2]);
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
  app.add_option("--rounds", flags.rounds, "of one read and one load each");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = millrace::Run(flags);
  if (status.ok()) return 0;
  spdlog::critical("{}", status.ToString());
  return 1;
}
