#include "tests/model/golden_model.h"

#include <gtest/gtest.h>

#include <cstring>

#include "common/files.h"
#include "tests/testing/fake_device.h"

namespace millrace::testing {
namespace {

at::Device DeviceOf(Path path) {
  return path == Path::kFakeDevice ? FakeDevice() : at::Device(at::kCPU);
}

std::unique_ptr<Transformer> Ready(absl::StatusOr<std::unique_ptr<Transformer>> model, Path path) {
  if (!model.ok()) {
    ADD_FAILURE() << model.status();
    return nullptr;
  }
  (*model)->set_force_operators(path == Path::kOperators);
  return *std::move(model);
}

template <typename T>
std::vector<T> ReadInts(const SafetensorsReader& reader, const std::string& name) {
  const TensorView view = reader.Get(name).value();
  std::vector<int64_t> values(view.bytes.size() / sizeof(int64_t));
  std::memcpy(values.data(), view.bytes.data(), view.bytes.size());
  return {values.begin(), values.end()};
}

at::Tensor ToTensor(const TensorView& view) {
  at::Tensor out = at::empty(view.shape, at::kFloat);
  EXPECT_TRUE(ConvertToFloat32(view, absl::MakeSpan(out.data_ptr<float>(), out.numel())).ok());
  return out;
}

}  // namespace

std::string PathName(Path path) {
  return path == Path::kFused ? "fused" : path == Path::kOperators ? "operators" : "fake_device";
}

std::string GoldenModelDir(const std::string& name) {
  return JoinPath(JoinPath(MILLRACE_GOLDEN_DIR, "models"), name);
}

std::unique_ptr<Transformer> LoadGolden(const std::string& name, Path path) {
  return Ready(Transformer::Load(GoldenModelDir(name), DeviceOf(path)), path);
}

ModelConfig SmallConfig(const std::string& model_type) {
  ModelConfig c;
  c.model_type = model_type;
  c.vocab_size = 37;
  c.hidden_size = 24;
  c.intermediate_size = 40;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 10;
  c.max_position = 128;
  c.tie_word_embeddings = model_type == "qwen3";
  c.qk_norm = model_type == "qwen3" || model_type == "qwen3_moe";
  c.qkv_bias = model_type == "llama" || model_type == "qwen2";
  c.o_bias = model_type == "llama";
  if (model_type == "llama") c.rope = {RopeType::kLlama3, 10000, 4, 16};
  if (model_type == "mistral") {
    c.rope = {RopeType::kYarn, 10000, 4, 32};  // as max_position says
    c.rope.attention_factor = 1.2;
    c.sliding_window = 7;
  }
  if (model_type == "qwen3_moe") {
    c.experts = 5;
    c.experts_per_token = 2;
    c.expert_intermediate_size = 12;
    c.mlp_only_layers = {0};
  }
  return c;
}

std::unique_ptr<Transformer> MakeModel(const ModelConfig& config, Path path, uint64_t seed) {
  std::unique_ptr<Transformer> model =
      Ready(Transformer::Create(config, seed, DeviceOf(path)), path);
  if (model == nullptr) return nullptr;
  // Larger weights, norms away from 1 and biases away from 0, so that no term hides.
  at::Tensor noise = at::empty({ParameterCount(config)}, at::kFloat);
  at::Generator generator = at::detail::createCPUGenerator(seed + 1);
  noise.normal_(0, 0.15, generator);
  model->flat_parameters().add_(noise.to(DeviceOf(path)));
  return model;
}

GoldenCase ReadGoldenCase(const std::string& name, const std::string& suffix) {
  GoldenCase out;
  // The sharded folder holds the same weights as its neighbour, which has the expected numbers.
  const std::string dir = GoldenModelDir(name == "qwen3_untied_sharded" ? "qwen3_untied" : name);
  out.json = nlohmann::json::parse(ReadFile(JoinPath(dir, "golden.json")).value());
  const SafetensorsReader reader =
      SafetensorsReader::Open(JoinPath(dir, "golden.safetensors")).value();
  const auto tensor = [&](const std::string& wanted) {
    return ToTensor(reader.Get(wanted + suffix).value());
  };
  const auto ids = ReadInts<int32_t>(reader, "right.input_ids");
  const auto mask = ReadInts<int32_t>(reader, "right.attention_mask");
  const at::Tensor logits = tensor("right.logits");
  const bool scored = reader.tensors().contains("right.logprobs" + suffix);
  const bool left = reader.tensors().contains("left.logits");
  const int64_t width = logits.size(1);
  for (int64_t r = 0; r < logits.size(0); ++r) {
    int64_t n = 0;
    while (n < width && mask[r * width + n] != 0) ++n;
    out.rows.emplace_back(ids.begin() + r * width, ids.begin() + r * width + n);
    out.logits.push_back(logits[r].narrow(0, 0, n));
    if (scored) out.logprobs.push_back(tensor("right.logprobs")[r].narrow(0, 0, n));
    if (!left) continue;
    out.left_logits.push_back(tensor("left.logits")[r].narrow(0, width - n, n));
    out.left_logprobs.push_back(tensor("left.logprobs")[r].narrow(0, width - n, n));
  }
  return out;
}

at::Tensor ReadTensor(const std::string& path, const std::string& name) {
  return ToTensor(SafetensorsReader::Open(path).value().Get(name).value());
}

PackedBatch PackRows(const std::vector<std::vector<int32_t>>& rows, int64_t cut) {
  PackedBatch batch;
  for (const std::vector<int32_t>& row : rows) {
    int64_t parent = -1, begin = 0;
    const int64_t base = batch.token_ids.size(), n = row.size();
    for (int piece = 0; begin < n; ++piece) {
      const int64_t end = cut > 0 && piece < 2 ? std::min(n, begin + cut) : n;
      batch.segments.push_back({base + begin, base + end, parent});
      parent = static_cast<int64_t>(batch.segments.size()) - 1;
      begin = end;
    }
    for (int64_t t = 0; t < n; ++t) {
      batch.token_ids.push_back(row[t]);
      batch.positions.push_back(static_cast<int32_t>(t));
    }
  }
  return batch;
}

double MaxDifference(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) {
    ADD_FAILURE() << "shapes differ: " << a.sizes() << " and " << b.sizes();
    return 1e30;
  }
  if (a.numel() == 0) return 0;
  return (a.detach().to(at::kCPU) - b.detach().to(at::kCPU)).abs().max().item<double>();
}

}  // namespace millrace::testing
