// Every instruction set this machine has, against plain loops.
#include "model/kernels/decode_kernels.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <random>

#include "model/kernels/decode_pool.h"
#include "model/kernels/decode_weights.h"

namespace millrace::decode {
namespace {

std::vector<float> Random(int64_t n, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(n);
  for (float& v : x) v = normal(generator);
  return x;
}

class KernelsTest : public ::testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels = *GetParam();
};

TEST_P(KernelsTest, ProductsEqualPlainLoopsForAllRowCountsAndModes) {
  const int64_t k = 37, lanes = kernels.lanes, width = 2 * lanes;
  for (int64_t rows = 1; rows <= 30; ++rows) {
    for (GemmMode mode : {GemmMode::kStore, GemmMode::kAdd, GemmMode::kSwiglu}) {
      for (int64_t cols : {mode == GemmMode::kSwiglu ? lanes : width, lanes - 1}) {
        const std::vector<float> a = Random(rows * (k + 3), 1), w = Random(width * k, 2);
        const std::vector<float> bias = Random(width, 3), before = Random(rows * (cols + 5), 4);
        std::vector<const float*> pointers;
        for (int64_t j = 0; j < width; ++j) pointers.push_back(w.data() + j * k);
        std::vector<float> panel(width * k), out = before;
        kernels.pack_panel(pointers.data(), k, panel.data());
        kernels.gemm({a.data(), k + 3, rows, panel.data(), k, bias.data(), out.data(), cols + 5,
                      cols, mode});
        const auto dot = [&](int64_t r, int64_t c) {
          double sum = bias[c];
          for (int64_t i = 0; i < k; ++i) sum += double{a[r * (k + 3) + i]} * w[c * k + i];
          return sum;
        };
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < cols + 5; ++c) {
            const float old = before[r * (cols + 5) + c];
            double want = old;
            if (c < cols) want = dot(r, c) + (mode == GemmMode::kAdd ? old : 0);
            if (c < cols && mode == GemmMode::kSwiglu) {
              want = dot(r, c) / (1 + std::exp(-dot(r, c))) * dot(r, c + lanes);
            }
            ASSERT_NEAR(out[r * (cols + 5) + c], want, 2e-4)
                << "rows " << rows << " at " << r << "," << c;
          }
        }
      }
    }
  }
}

TEST_P(KernelsTest, ExponentialsAreRightToTwoUnitsInTheLastPlaces) {
  std::vector<float> x, out;
  for (double v = -80; v < 80; v += 0.0173) x.push_back(static_cast<float>(v));
  out.resize(x.size());
  const int64_t n = static_cast<int64_t>(x.size());
  kernels.exp_sum(x.data(), n, 1, 0, out.data());
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_NEAR(out[i] / std::exp(static_cast<double>(x[i])), 1, 3e-7) << x[i];
  }
  const float sum = kernels.exp_sum(x.data(), 1000, 0.5f, x[999], nullptr);
  double want = 0;
  for (int i = 0; i < 1000; ++i) want += std::exp(0.5 * (double{x[i]} - x[999]));
  EXPECT_NEAR(sum / want, 1, 1e-5);
  EXPECT_EQ(kernels.max(x.data(), n), x.back());
  EXPECT_EQ(kernels.max(x.data(), 3), x[2]);
}

TEST_P(KernelsTest, NormDividesByTheRootMeanSquare) {
  for (int64_t n : {1, 7, 16, 24, 67}) {
    const std::vector<float> x = Random(n, 5), weight = Random(n, 6);
    std::vector<float> out(n);
    kernels.rms_norm(x.data(), weight.data(), 1e-3f, n, out.data());
    double squares = 0;
    for (float v : x) squares += double{v} * v;
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_NEAR(out[i], x[i] / std::sqrt(squares / n + 1e-3) * weight[i], 1e-5);
    }
  }
}

// Rows of several sequences that share their first blocks.
TEST_P(KernelsTest, AttentionOverSharedAndOwnBlocksEqualsPlainSoftmax) {
  const int64_t stride = 2 * 24 * kKvBlock;
  for (int64_t d : {10, 16, 24, 64}) {
    for (int64_t shared : {0, 2, 8, 11}) {
      const std::vector<float> keys = Random(64 * 2 * 64 * kKvBlock, 7);
      const std::vector<float> values = Random(64 * 2 * 64 * kKvBlock, 8);
      const std::vector<float> q = Random(9 * d, 9);
      std::vector<std::vector<int32_t>> tables(3);
      int32_t next = 0;
      for (int64_t b = 0; b < shared; ++b) {
        for (auto& table : tables) table.push_back(next);
        ++next;
      }
      std::vector<AttentionRow> rows;
      std::vector<float> out(9 * d);
      for (int s = 0; s < 3; ++s) {
        const int64_t length = shared * kKvBlock + 5 + 33 * s;
        while (static_cast<int64_t>(tables[s].size()) * kKvBlock < length) {
          tables[s].push_back(next++);
        }
        // Two heads of a decoding row for sequences 0 and 1, five causal rows for sequence 2.
        const int count = s == 2 ? 5 : 2;
        for (int r = 0; r < count; ++r) {
          const int64_t i = static_cast<int64_t>(rows.size());
          const int64_t limit = s == 2 ? length - 4 + r : length;
          rows.push_back({&q[i * d], &out[i * d], limit, tables[s].data()});
        }
      }
      std::vector<float> scratch(kAttentionRows * (kAttentionChunk + 2));
      kernels.attention({rows.data(), 9, shared * kKvBlock, keys.data(), values.data(), stride, 0,
                         d, scratch.data()});
      for (int64_t r = 0; r < 9; ++r) {
        double total = 0;
        std::vector<double> want(d);
        for (int64_t t = 0; t < rows[r].limit; ++t) {
          const int64_t block = rows[r].blocks[t / kKvBlock] * stride, slot = t % kKvBlock;
          double score = 0;
          for (int64_t i = 0; i < d; ++i) {
            score += double{rows[r].q[i]} * keys[block + i * kKvBlock + slot];
          }
          total += std::exp(score);
          for (int64_t i = 0; i < d; ++i) want[i] += std::exp(score) * values[block + slot * d + i];
        }
        for (int64_t i = 0; i < d; ++i) {
          ASSERT_NEAR(out[r * d + i], want[i] / total, 2e-5)
              << "head_dim " << d << " shared " << shared << " row " << r;
        }
      }
    }
  }
}

// As the hardware rounds: to nearest, ties to even.
float Bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u);
}

TEST_P(KernelsTest, ProductsOfBf16FactorsEqualPlainLoopsOverRoundedNumbers) {
  if (kernels.gemm_bf16 == nullptr) GTEST_SKIP() << "no bf16 instruction in " << kernels.name;
  const int64_t lanes = kernels.lanes, width = 2 * lanes;
  for (int64_t k : {1, 2, 31, 32, 33, 70}) {
    for (int64_t rows : {1, 5, 12, 13, 30}) {
      const int64_t even = (k + 1) / 2 * 2, lda = even + 4;
      const std::vector<float> a = Random(rows * k, 1), w = Random(width * k, 2);
      std::vector<uint16_t> rounded(rows * lda, 0xFFFF), panel(width * even, 0xFFFF);
      for (int64_t r = 0; r < rows; ++r) {
        kernels.round_bf16(a.data() + r * k, k, rounded.data() + r * lda);
      }
      std::vector<const float*> pointers(width, nullptr);  // the last column has no weights
      for (int64_t j = 0; j + 1 < width; ++j) pointers[j] = w.data() + j * k;
      kernels.pack_panel_bf16(pointers.data(), k, panel.data());
      std::vector<float> out(rows * width, NAN);
      GemmArgs args;
      args.a_bf16 = rounded.data();
      args.lda = lda;
      args.rows = rows;
      args.panel_bf16 = panel.data();
      args.k = k;
      args.out = out.data();
      args.ldo = args.cols = width;
      kernels.gemm_bf16(args);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < width; ++c) {
          double want = 0;
          for (int64_t i = 0; c + 1 < width && i < k; ++i) {
            want += double{Bf16(a[r * k + i])} * Bf16(w[c * k + i]);
          }
          ASSERT_NEAR(out[r * width + c], want, 2e-5 * k) << "k " << k << " at " << r << "," << c;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, KernelsTest, ::testing::ValuesIn(AvailableKernels()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST(PackedMatrixTest, PartsInDifferentPlacesAreOneMatrix) {
  const int64_t n = 150, k = 33, rows = 5;
  const std::vector<float> w = Random(n * k, 1), bias = Random(n, 3), a = Random(rows * k, 2);
  ComputePool pool(2);
  for (bool swiglu : {false, true}) {
    const PackedMatrix::Shape shape = {n, k, swiglu, ComputeType::kFloat32};
    HugeArena arena(2 * PackedMatrix::Bytes(shape));
    PackedMatrix whole(shape, &arena), parted(shape, &arena);
    // Copies, so that they do not lie one after the other.
    std::vector<std::vector<float>> weights, biases;
    std::vector<PackedMatrix::Rows> parts;
    int64_t row = 0;
    for (int64_t count : {int64_t{100}, int64_t{0}, int64_t{17}, int64_t{33}}) {
      weights.emplace_back(w.begin() + row * k, w.begin() + (row + count) * k);
      biases.emplace_back(bias.begin() + row, bias.begin() + row + count);
      row += count;
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      parts.push_back({weights[i].data(), biases[i].data(), std::ssize(biases[i])});
    }
    // The empty part has no bias to point to.
    parts[1].bias = bias.data();
    const int64_t columns = swiglu ? n / 2 : n;
    std::vector<float> out(rows * columns), expected(rows * columns);
    pool.Run([&](PoolWorker& worker) {
      whole.Pack(worker, {{w.data(), bias.data(), n}});
      parted.Pack(worker, parts);
      whole.Multiply(worker, {a.data(), nullptr, k, rows, expected.data(), columns, false});
      parted.Multiply(worker, {a.data(), nullptr, k, rows, out.data(), columns, false});
    });
    EXPECT_EQ(out, expected);
    EXPECT_NE(out, std::vector<float>(out.size(), 0.0f));
  }
}

TEST(PackedMatrixTest, ProductsEqualPlainLoopsOnSeveralThreads) {
  const int64_t n = 150, k = 33, rows = 205;
  const std::vector<float> w = Random(n * k, 1), a = Random(rows * k, 2);
  ComputePool pool(3);
  for (const ComputeType type : {ComputeType::kFloat32, ComputeType::kBfloat16}) {
    const bool bf16 = type == ComputeType::kBfloat16;
    if (bf16 && BestKernels().gemm_bf16 == nullptr) continue;
    for (bool swiglu : {false, true}) {
      const PackedMatrix::Shape shape = {n, k, swiglu, type};
      HugeArena arena(PackedMatrix::Bytes(shape));
      PackedMatrix matrix(shape, &arena);
      const int64_t columns = swiglu ? n / 2 : n;
      std::vector<float> out(rows * columns);
      std::vector<uint16_t> rounded(rows * (k + 1));
      pool.Run([&](PoolWorker& worker) {
        matrix.Pack(worker, {{w.data(), nullptr, n}});
        matrix.Multiply(worker, {a.data(), rounded.data(), k, rows, out.data(), columns, false});
      });
      const auto dot = [&](int64_t r, int64_t c) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i) {
          const float x = a[r * k + i], y = w[c * k + i];
          sum += bf16 ? double{Bf16(x)} * Bf16(y) : double{x} * y;
        }
        return sum;
      };
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          double want = dot(r, c);
          if (swiglu) want = want / (1 + std::exp(-want)) * dot(r, c + columns);
          ASSERT_NEAR(out[r * columns + c], want, 3e-4);
        }
      }
    }
  }
}

TEST(ComputePoolTest, LoopsStartWhenTheOneBeforeIsDoneAndEveryItemRunsOnce) {
  for (int threads : {1, 2, 5}) {
    ComputePool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int run = 0; run < 200; ++run) {
      std::vector<int> first(37), second(37);
      pool.Run([&](PoolWorker& worker) {
        worker.For(37, [&](int64_t i) { ++first[i]; });
        worker.For(0, [&](int64_t) { ADD_FAILURE(); });
        worker.For(37, [&](int64_t i) { second[i] = first[36 - i]; });
      });
      for (int v : second) ASSERT_EQ(v, 1);
    }
  }
}

}  // namespace
}  // namespace millrace::decode
