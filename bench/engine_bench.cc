// Decode rate of the engine: `batch` samples of `new` tokens after prompts of `prompt` tokens, with
// no early stop. Prints tokens a second (prefill included in the time), best of `repeats`, and the
// peak memory; the last line is JSON.
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"
#include "bench/shapes.h"
#include "model/sampling.h"
#include "rollout_server/engine.h"

namespace millrace {
namespace {

struct Flags {
  std::string shape = "tiny";
  std::string model;
  int64_t batch = 64, prompt = 16, samples = 1;
  int32_t new_tokens = 128;
  int threads = 2, repeats = 3;
  bool bf16 = false;
  float temperature = 0;
};

// The shapes of published comparisons: a 3.28 M parameter Qwen3 and SmolLM2-135M's Llama.
absl::StatusOr<std::unique_ptr<Transformer>> MakeModel(const Flags& flags) {
  if (!flags.model.empty()) return Transformer::Load(flags.model, at::kCPU);
  return Transformer::Create(BenchShape(flags.shape), 1, at::kCPU);
}

// Seconds for one whole batch.
double RunOnce(Engine* engine, const Flags& flags, uint64_t seed) {
  const int64_t prompts = flags.batch / flags.samples;
  absl::BlockingCounter left(static_cast<int>(prompts * flags.samples));
  const absl::Time begin = absl::Now();
  for (int64_t p = 0; p < prompts; ++p) {
    EngineRequest request;
    for (int64_t t = 0; t < flags.prompt; ++t) {
      request.prompt.push_back(
          static_cast<int32_t>(UniformAt(seed, p * flags.prompt + t) *
                               static_cast<double>(engine->model_config().vocab_size)));
    }
    for (int64_t i = 0; i < flags.samples; ++i) request.indices.push_back(i);
    request.seed = seed + p;
    request.sampling.temperature = flags.temperature;
    request.max_new_tokens = flags.new_tokens;
    request.on_sample = [&left](GeneratedSample) { left.DecrementCount(); };
    const auto id = engine->Submit(std::move(request));
    if (!id.ok()) {
      spdlog::critical("{}", id.status().ToString());
      std::exit(1);
    }
  }
  left.Wait();
  return absl::ToDoubleSeconds(absl::Now() - begin);
}

int Run(const Flags& flags) {
  auto model = MakeModel(flags);
  if (!model.ok()) {
    spdlog::critical("{}", model.status().ToString());
    return 1;
  }
  if (flags.bf16) (*model)->set_compute_type(ComputeType::kBfloat16);
  Engine::Options options;
  options.max_batch = flags.batch;
  options.threads = flags.threads;
  options.kv_tokens = flags.batch * (flags.prompt + flags.new_tokens + 32);
  Metrics metrics;
  auto engine = Engine::Start(*std::move(model), options, &metrics);
  if (!engine.ok()) {
    spdlog::critical("{}", engine.status().ToString());
    return 1;
  }
  (*engine)->SetVersion(0);
  const int64_t tokens = flags.batch / flags.samples * flags.samples * flags.new_tokens;
  double best = 1e30;
  for (int i = 0; i < flags.repeats; ++i) {
    const double seconds = RunOnce(engine->get(), flags, 1000 * (i + 1));
    std::printf("run %d: %.3f s, %.0f tok/s\n", i, seconds, static_cast<double>(tokens) / seconds);
    best = std::min(best, seconds);
  }
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "{\"tok_per_s\": %.0f, \"seconds\": %.4f, \"batch\": %lld, \"threads\": %d, "
      "\"peak_rss_mib\": %ld}\n",
      static_cast<double>(tokens) / best, best, static_cast<long long>(flags.batch), flags.threads,
      usage.ru_maxrss / 1024);
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  millrace::Flags flags;
  CLI::App app("Decode rate of the engine");
  app.add_option("--shape", flags.shape, "tiny or smollm2, random weights")
      ->check(CLI::IsMember({"tiny", "smollm2"}));
  app.add_option("--model", flags.model, "Hugging Face folder instead of a shape");
  app.add_option("--batch", flags.batch, "samples decoded together");
  app.add_option("--samples", flags.samples, "samples of one prompt");
  app.add_option("--prompt", flags.prompt, "prompt tokens");
  app.add_option("--new", flags.new_tokens, "new tokens of a sample");
  app.add_option("--threads", flags.threads, "compute threads");
  app.add_flag("--bf16", flags.bf16, "matrix products of bf16 factors");
  app.add_option("--repeat,--repeats", flags.repeats, "runs, the best of which counts");
  app.add_option("--temperature", flags.temperature, "0 = greedy");
  CLI11_PARSE(app, argc, argv);
  return millrace::Run(flags);
}
