// Saving, loading, and weights as bytes.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>

#include "absl/strings/str_join.h"
#include "common/files.h"
#include "model/parameter_view.h"
#include "model/safetensors.h"
#include "model/transformer.h"
#include "tests/model/golden_model.h"
#include "tests/testing/fake_device.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using testing::MaxDifference;
using testing::Path;

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() : dir_(::testing::TempDir() + "/checkpoint_test_" + Name()) {
    EXPECT_TRUE(RemoveRecursively(dir_).ok());
  }
  ~CheckpointTest() override { EXPECT_TRUE(RemoveRecursively(dir_).ok()); }
  static std::string Name() {
    return ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  // A copy of golden model qwen3_untied with its tensors changed by `edit`.
  absl::Status LoadEdited(const std::function<void(std::map<std::string, TensorView>&)>& edit) {
    const std::string from = testing::GoldenModelDir("qwen3_untied");
    EXPECT_TRUE(MakeDirectories(dir_).ok());
    EXPECT_TRUE(WriteFileAtomically(JoinPath(dir_, "config.json"),
                                    ReadFile(JoinPath(from, "config.json")).value())
                    .ok());
    const SafetensorsReader reader =
        SafetensorsReader::Open(JoinPath(from, "model.safetensors")).value();
    std::map<std::string, TensorView> tensors(reader.tensors().begin(), reader.tensors().end());
    edit(tensors);
    EXPECT_TRUE(WriteSafetensors(JoinPath(dir_, "model.safetensors"), tensors).ok());
    return Transformer::Load(dir_, at::kCPU).status();
  }
  // A folder of `model` whose tensors have the dtypes (F32, BF16, F16) in turn; returns the flat
  // parameters that loading it must give.
  at::Tensor SaveInDtypes(const Transformer& model, const std::vector<const char*>& dtypes) {
    EXPECT_TRUE(model.Save(dir_).ok());  // for config.json; the weights are written again
    std::map<std::string, at::Tensor> tensors;
    std::map<std::string, TensorSpec> specs;
    std::vector<at::Tensor> flat;
    for (const NamedParameter& p : model.parameters()) {
      const std::string dtype = dtypes[flat.size() % dtypes.size()];
      tensors[p.name] = p.tensor.to(dtype == "F16"    ? at::kHalf
                                    : dtype == "BF16" ? at::kBFloat16
                                                      : at::kFloat);
      specs[p.name] = {dtype, p.tensor.sizes().vec()};
      flat.push_back(tensors[p.name].to(at::kFloat).flatten());
    }
    const auto bytes_of =
        [&](const std::string& name) -> absl::StatusOr<absl::Span<const std::byte>> {
      const at::Tensor& tensor = tensors.at(name);
      return absl::MakeConstSpan(static_cast<const std::byte*>(tensor.const_data_ptr()),
                                 tensor.nbytes());
    };
    EXPECT_TRUE(
        WriteSafetensorsOneByOne(JoinPath(dir_, "model.safetensors"), specs, bytes_of).ok());
    return at::cat(flat);
  }

  const std::string dir_;
};

TEST_F(CheckpointTest, SavedModelLoadsToTheSameBits) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe"}) {
    for (const Path path : {Path::kFused, Path::kFakeDevice}) {
      std::unique_ptr<Transformer> model = testing::MakeModel(testing::SmallConfig(type), path);
      ASSERT_TRUE(model->Save(dir_).ok());
      absl::StatusOr<std::unique_ptr<Transformer>> again = Transformer::Load(dir_, model->device());
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(MaxDifference((*again)->flat_parameters(), model->flat_parameters()), 0) << type;
    }
  }
}

TEST_F(CheckpointTest, Bf16SaveRoundsToNearest) {
  std::unique_ptr<Transformer> model =
      testing::MakeModel(testing::SmallConfig("qwen3"), Path::kFused);
  ASSERT_TRUE(model->Save(dir_, "BF16").ok());
  absl::StatusOr<std::unique_ptr<Transformer>> again = Transformer::Load(dir_, at::kCPU);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(MaxDifference((*again)->flat_parameters(),
                          model->flat_parameters().to(at::kBFloat16).to(at::kFloat)),
            0);
  EXPECT_THAT(std::string(model->Save(dir_, "I8").message()), HasSubstr("F32, BF16"));
}

TEST_F(CheckpointTest, MissingSurplusAndMisshapenTensorsAreNamed) {
  const std::string down = "model.layers.1.mlp.down_proj.weight";
  absl::Status status = LoadEdited([&](auto& t) { t.erase(down); });
  EXPECT_THAT(std::string(status.message()), HasSubstr("missing: " + down));

  status = LoadEdited([&](auto& t) { t["model.layers.9.what"] = t["model.norm.weight"]; });
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.layers.9.what"));

  status = LoadEdited([&](auto& t) { t[down].shape = {128, 64}; });
  EXPECT_THAT(std::string(status.message()), HasSubstr(down));
  EXPECT_THAT(std::string(status.message()), HasSubstr("(128, 64)"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("(64, 128)"));

  EXPECT_TRUE(LoadEdited([](auto&) {}).ok());
}

TEST_F(CheckpointTest, VocabularyAndEmbeddingMustAgree) {
  for (const int64_t rows : {511, 513}) {
    const std::vector<float> embedding(rows * 64);
    const absl::Status status = LoadEdited([&](auto& t) {
      t["model.embed_tokens.weight"] = {
          "F32",
          {rows, 64},
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(embedding.data()),
                              embedding.size() * sizeof(float))};
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("model.embed_tokens.weight has shape (" + std::to_string(rows) +
                          ", 64), config.json says (512, 64)"));
  }
}

TEST_F(CheckpointTest, ADtypeThatIsNoFloatIsRefusedBeforeAnythingIsRead) {
  int calls = 0;
  absl::Status status = LoadEdited([&](auto& t) { t["model.norm.weight"].dtype = "I32"; });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.norm.weight has dtype I32"));
  status = Transformer::Load(dir_, at::kCPU, {.progress = [&](double) { ++calls; }}).status();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(calls, 0);
}

// Kibibytes of a line of /proc/self/status.
int64_t StatusKib(const std::string& field) {
  const std::string text = ReadFile("/proc/self/status").value();
  const size_t at = text.find(field + ":");
  return at == std::string::npos ? 0
                                 : std::strtoll(text.c_str() + at + field.size() + 1, nullptr, 10);
}

TEST_F(CheckpointTest, LoadingHoldsOneTensorBesideTheWeights) {
  ModelConfig config = testing::SmallConfig("qwen3");
  config.hidden_size = 512;
  config.intermediate_size = 4096;
  config.layers = 6;
  config.vocab_size = 2000;
  const int64_t weights = ParameterCount(config) * 4, largest = 4096 * 512 * 4;
  ASSERT_TRUE(Transformer::Create(config, 1, at::kCPU).value()->Save(dir_).ok());
  const auto resident = [] { return (StatusKib("RssAnon") + StatusKib("RssFile")) * 1024; };
  const int64_t before = resident();
  int64_t most = 0;
  double last = 0;
  LoadOptions options;
  options.progress = [&](double fraction) {
    EXPECT_GT(fraction, last);
    last = fraction;
    most = std::max(most, resident() - before);
  };
  auto model = Transformer::Load(dir_, at::kCPU, options);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(last, 1);
  EXPECT_GT(most, weights / 2);  // the measure measures
  EXPECT_LT(most, weights + largest + (4 << 20));
}

TEST_F(CheckpointTest, LargeTensorsOfAnyDtypeComeToTheirPlacesOnAnyNumberOfThreads) {
  ModelConfig config = testing::SmallConfig("qwen2");
  config.vocab_size = 20000;
  config.hidden_size = 96;  // the embedding is read in four pieces or five
  const auto model = Transformer::Create(config, 3, at::kCPU).value();
  const std::vector<std::vector<const char*>> cases = {
      {"F32"}, {"BF16"}, {"F16"}, {"F16", "F32", "BF16"}};
  for (const std::vector<const char*>& dtypes : cases) {
    SCOPED_TRACE(absl::StrJoin(dtypes, " "));
    const at::Tensor expected = SaveInDtypes(*model, dtypes);
    const int before = at::get_num_threads();
    for (const int threads : {1, 3}) {
      at::set_num_threads(threads);
      std::vector<double> heard;
      const auto again = Transformer::Load(
          dir_, at::kCPU, {.progress = [&](double fraction) { heard.push_back(fraction); }});
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(MaxDifference((*again)->flat_parameters(), expected), 0) << threads;
      EXPECT_TRUE(std::is_sorted(heard.begin(), heard.end()));
      EXPECT_EQ(std::count(heard.begin(), heard.end(), 1.0), 1);
      EXPECT_EQ(heard.back(), 1.0);
    }
    at::set_num_threads(before);
  }
}

TEST_F(CheckpointTest, UnwritableFolderIsAnErrorThatNamesIt) {
  std::unique_ptr<Transformer> model =
      testing::MakeModel(testing::SmallConfig("qwen3"), Path::kFused);
  ASSERT_TRUE(WriteFileAtomically(dir_, "a file, not a folder").ok());
  const absl::Status status = model->Save(dir_);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(dir_));
}

TEST(ParameterViewTest, BytesWrittenToAnotherModelMakeItTheSame) {
  for (const Path from : {Path::kFused, Path::kFakeDevice}) {
    for (const Path to : {Path::kFused, Path::kFakeDevice}) {
      std::unique_ptr<Transformer> a = testing::MakeModel(testing::SmallConfig("qwen2"), from, 1);
      std::unique_ptr<Transformer> b = testing::MakeModel(testing::SmallConfig("qwen2"), to, 2);
      absl::StatusOr<ParameterView> view = ParameterView::Of(*a);
      ASSERT_TRUE(view.ok()) << view.status();
      const absl::Status status = WriteParameters(view->parameters(), b.get());
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(MaxDifference(a->flat_parameters(), b->flat_parameters()), 0);
    }
  }
}

TEST(ParameterViewTest, DeviceParametersCrossInOneTransfer) {
  std::unique_ptr<Transformer> model =
      testing::MakeModel(testing::SmallConfig("qwen3"), Path::kFakeDevice);
  testing::ResetFakeDeviceCounts();
  absl::StatusOr<ParameterView> view = ParameterView::Of(*model);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(testing::ReadFakeDeviceCounts().to_host, 1);
  ASSERT_TRUE(WriteParameters(view->parameters(), model.get()).ok());
  EXPECT_EQ(testing::ReadFakeDeviceCounts().to_device, 1);
}

TEST(ParameterViewTest, Bf16BytesAreWidened) {
  std::unique_ptr<Transformer> model =
      testing::MakeModel(testing::SmallConfig("qwen3"), Path::kFused);
  const at::Tensor half = model->flat_parameters().to(at::kBFloat16);
  std::vector<ParameterBytes> parameters = ParameterView::Of(*model)->parameters();
  const std::byte* at = static_cast<const std::byte*>(half.const_data_ptr());
  for (ParameterBytes& p : parameters) {
    p.dtype = "BF16";
    p.bytes = absl::MakeConstSpan(at, p.bytes.size() / 2);
    at += p.bytes.size();
  }
  ASSERT_TRUE(WriteParameters(parameters, model.get()).ok());
  EXPECT_EQ(MaxDifference(model->flat_parameters(), half.to(at::kFloat)), 0);
}

TEST(ParameterViewTest, NothingIsWrittenWhenOneTensorIsWrong) {
  std::unique_ptr<Transformer> model =
      testing::MakeModel(testing::SmallConfig("qwen3"), Path::kFused, 1);
  std::unique_ptr<Transformer> other =
      testing::MakeModel(testing::SmallConfig("qwen3"), Path::kFused, 2);
  const std::vector<ParameterBytes> good = ParameterView::Of(*other)->parameters();
  const struct {
    std::function<void(std::vector<ParameterBytes>&)> spoil;
    const char* message;
  } cases[] = {
      {[](auto& p) { p.back().shape = {7}; }, "model.norm.weight has shape (7)"},
      {[](auto& p) { p.back().dtype = "I64"; }, "has dtype I64"},
      {[](auto& p) { p.back().bytes.remove_suffix(4); }, "has 92 bytes, its shape needs 96"},
      {[](auto& p) { p.back().name = "nonsense"; }, "nonsense"},
      {[](auto& p) { p.pop_back(); }, "1 tensors are missing, first model.norm.weight"},
      {[](auto& p) { p.push_back(p[0]); }, "came twice"},
  };
  const at::Tensor before = model->flat_parameters().clone();
  for (const auto& c : cases) {
    std::vector<ParameterBytes> spoiled = good;
    c.spoil(spoiled);
    const absl::Status status = WriteParameters(spoiled, model.get());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
    EXPECT_EQ(MaxDifference(model->flat_parameters(), before), 0) << c.message;
  }
}

}  // namespace
}  // namespace millrace
