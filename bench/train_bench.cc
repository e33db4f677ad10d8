// Speed of a training step: forward, chunked log-probabilities, backward, on groups that share
// their prompt. Prints tokens and GFLOP a second, and the share of the rate that bare matrix
// products of the same shapes reach in the same process (rounds alternate; the best of each
// counts).
//
//   train_bench --model tiny --threads 2
//   train_bench --model smollm2 --prompts 4 --completions 4 --prompt-tokens 60 --tokens 40
//
// Which call for the matrix products (EPYC of the Zen 4 kind, 2 cores, LibTorch 2.11): at::mm with
// the weights as stored (out, in), transposed beforehand, and the two backward shapes all run at
// 192-207 GFLOP/s on two threads and 95-104 on one, for 512 rows and more. MKL takes its AVX2
// kernel for Zen there, which is at the rate of the multiply-add units, so nothing is packed or
// transposed.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/shapes.h"
#include "learner/optimizer.h"
#include "model/logprobs.h"
#include "model/transformer.h"

namespace millrace {
namespace {

struct Flags {
  std::string model = "tiny";
  int threads = 2, prompts = 16, completions = 8, prompt_tokens = 6, rounds = 5;
  double tokens = 31;  // of a completion, on average
  int64_t chunk = 512;
  bool operators = false, unshared = false, bf16 = false;
};

struct Work {
  PackedBatch batch;
  std::vector<int64_t> rows, targets;  // of the log-probabilities
  int64_t trained = 0;                 // completion tokens
};

Work MakeWork(const Flags& f, int64_t vocab) {
  Work w;
  uint32_t state = 1;
  const auto random = [&](uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
  };
  const auto add = [&](int64_t n, int64_t position, int64_t prefix, int64_t row_before) {
    const int64_t begin = w.batch.token_ids.size();
    for (int64_t i = 0; i < n; ++i) {
      w.batch.token_ids.push_back(static_cast<int32_t>(random(vocab)));
      w.batch.positions.push_back(static_cast<int32_t>(position + i));
      if (row_before < 0) continue;
      w.rows.push_back(i == 0 ? row_before : begin + i - 1);
      w.targets.push_back(w.batch.token_ids.back());
    }
    w.batch.segments.push_back({begin, begin + n, prefix});
    return begin + n - 1;
  };
  for (int p = 0; p < f.prompts; ++p) {
    int64_t prompt = -1, last = -1;
    for (int c = 0; c < f.completions; ++c) {
      // Lengths around the mean, the mean exactly over many.
      const double spread = f.tokens < 8 ? f.tokens : 0;
      const int64_t n = std::max<int64_t>(
          1, static_cast<int64_t>(f.tokens + spread * (random(1000) / 1000.0 - 0.5) + 0.5));
      if (prompt < 0 || f.unshared) {
        prompt = w.batch.segments.size();
        last = add(f.prompt_tokens, 0, -1, -1);
      }
      add(n, f.prompt_tokens, prompt, last);
      w.trained += n;
    }
  }
  return w;
}

double Seconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The matrix products of one pass, and nothing else: forward, and two of that size backward.
struct BareProducts {
  struct Product {
    at::Tensor x, w, y, dx, dw;
    int64_t times;
  };
  std::vector<Product> products;
  double flop = 0;

  BareProducts(const ModelConfig& c, int64_t tokens, int64_t head_rows) {
    const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    const int64_t rows = std::min<int64_t>(tokens, 1024);
    const auto add = [&](int64_t n, int64_t in, int64_t out, int64_t times) {
      products.push_back({at::randn({n, in}), at::randn({out, in}), at::empty({n, out}),
                          at::empty({n, in}), at::zeros({out, in}), times});
      flop += 6.0 * n * in * out * times;
    };
    const int64_t times = std::max<int64_t>(1, tokens / rows) * c.layers;
    add(rows, c.hidden_size, q + 2 * kv, times);
    add(rows, q, c.hidden_size, times);
    add(rows, c.hidden_size, 2 * c.intermediate_size, times);
    add(rows, c.intermediate_size, c.hidden_size, times);
    add(std::min<int64_t>(head_rows, 512), c.hidden_size, c.vocab_size,
        std::max<int64_t>(1, head_rows / 512));
  }
  void Run() {
    for (Product& p : products) {
      for (int64_t i = 0; i < p.times; ++i) {
        at::mm_out(p.y, p.x, p.w.t());
        at::mm_out(p.dx, p.y, p.w);
        at::addmm_out(p.dw, p.dw, p.y.t(), p.x, 0.0);
      }
    }
  }
};

int Main(const Flags& f) {
  at::set_num_threads(f.threads);
  const ModelConfig config = BenchShape(f.model);
  auto created = Transformer::Create(config, 1, at::kCPU);
  if (!created.ok()) {
    std::fprintf(stderr, "train_bench: %s\n", created.status().ToString().c_str());
    return 1;
  }
  Transformer& model = **created;
  model.set_force_operators(f.operators);
  if (f.bf16) model.set_compute_type(ComputeType::kBfloat16);
  model.flat_gradients();
  auto adamw = AdamW::Create(model.flat_parameters(), model.flat_gradients(), DecayRanges(model),
                             {.max_grad_norm = 1, .threads = f.threads});
  if (!adamw.ok()) {
    std::fprintf(stderr, "train_bench: %s\n", adamw.status().ToString().c_str());
    return 1;
  }
  const Work w = MakeWork(f, config.vocab_size);
  const int64_t tokens = w.batch.token_ids.size();
  const at::Tensor rows = at::tensor(w.rows, at::kLong), targets = at::tensor(w.targets, at::kLong);
  const int64_t dense = model.flat_parameters().numel() - config.vocab_size * config.hidden_size;
  // Attention left out: small at these lengths. The head's recomputation is not counted as work.
  const double flop =
      6.0 * dense * tokens + 6.0 * config.vocab_size * config.hidden_size * w.trained;

  double forward = 1e30, logprobs = 1e30, backward = 1e30, update = 1e30;
  double total = 1e30, bare = 1e30;
  BareProducts products(config, tokens, w.trained);
  for (int round = 0; round <= f.rounds; ++round) {
    at::Tensor hidden, loss;
    const double a = Seconds([&] { hidden = model.Forward(w.batch).value(); });
    const double b = Seconds([&] {
      loss = -SelectedLogprobs(hidden.index_select(0, rows), model.lm_head(), targets,
                               {1.0, f.chunk, model.compute_type()})
                  .logprobs.mean();
    });
    const double c = Seconds([&] { loss.backward(); });
    const double d = Seconds([&] { (*adamw)->Step(1e-6).value(); });
    const double e = Seconds([&] { products.Run(); });
    if (round == 0) continue;  // buffers, page faults
    forward = std::min(forward, a);
    logprobs = std::min(logprobs, b);
    backward = std::min(backward, c);
    update = std::min(update, d);
    total = std::min(total, a + b + c + d);
    bare = std::min(bare, e / products.flop);
  }
  std::printf("%s: %lld packed tokens, %lld trained, %d threads, %s%s\n", f.model.c_str(),
              static_cast<long long>(tokens), static_cast<long long>(w.trained), f.threads,
              f.operators ? "operators" : (f.bf16 ? "fused, bf16" : "fused"),
              f.unshared ? ", prompts not shared" : "");
  std::printf(
      "  forward %.1f ms, log-probabilities %.1f ms, backward %.1f ms, AdamW %.1f ms, "
      "together %.1f ms\n",
      forward * 1e3, logprobs * 1e3, backward * 1e3, update * 1e3, total * 1e3);
  std::printf("  %.0f packed tok/s, %.0f trained tok/s, %.1f GFLOP/s\n", tokens / total,
              w.trained / total, flop / total * 1e-9);
  std::printf("  bare matrix products %.1f GFLOP/s; the step runs at %.0f %% of that\n",
              1e-9 / bare, 100 * flop * bare / total);
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  millrace::Flags f;
  CLI::App app("Speed of a training step");
  app.add_option("--model", f.model, "tiny (3.28 M Qwen3) or smollm2 (135 M Llama)")
      ->check(CLI::IsMember({"tiny", "smollm2"}));
  app.add_option("--threads", f.threads);
  app.add_option("--prompts", f.prompts);
  app.add_option("--completions", f.completions, "per prompt");
  app.add_option("--prompt-tokens", f.prompt_tokens);
  app.add_option("--tokens", f.tokens, "of a completion, on average");
  app.add_option("--chunk", f.chunk, "rows of logits at a time");
  app.add_option("--rounds", f.rounds);
  app.add_flag("--operators", f.operators, "plain operators instead of fused kernels");
  app.add_flag("--bf16", f.bf16, "matrix products of bf16 factors");
  app.add_flag("--unshared", f.unshared, "repeat the prompt for every completion");
  CLI11_PARSE(app, argc, argv);
  return millrace::Main(f);
}
