#include "model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "common/files.h"
#include "model/byte_level.h"
#include "nlohmann/json.hpp"
#include "tests/model/temp_dir.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::IsOk;
using ::millrace::testing::StatusIs;
using ::millrace::testing::TempDir;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

const std::string kGolden = std::string(MILLRACE_GOLDEN_DIR) + "/tokenizers/";

Json ReadJson(const std::string& path) { return Json::parse(ReadFile(path).value()); }

const char* const kLayouts[] = {"gpt2_digits", "qwen", "llama3", "byte_fallback"};

class GoldenTokenizer : public ::testing::TestWithParam<const char*> {
 protected:
  const std::string dir_ = kGolden + GetParam();
  const std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::Load(dir_).value();
  const Json expected_ = ReadJson(dir_ + "/expected.json");
};

TEST_P(GoldenTokenizer, EncodesAndDecodesAsTheLibraryDoes) {
  EXPECT_EQ(tokenizer_->vocab_size(), expected_["vocab_size"]);
  ASSERT_GT(expected_["cases"].size(), 200u);
  for (const Json& c : expected_["cases"]) {
    const std::string text = c["text"];
    SCOPED_TRACE(c["text"].dump());
    const std::vector<int32_t> ids = tokenizer_->Encode(text, {.parse_special = true});
    EXPECT_EQ(Json(ids), c["ids"]);
    const Json around = c.contains("ids_with_special") ? c["ids_with_special"] : c["ids"];
    EXPECT_EQ(Json(tokenizer_->Encode(text, {.parse_special = true, .add_special = true})), around);
    EXPECT_EQ(tokenizer_->Decode(ids, /*keep_special=*/true), c["decoded"]);
    EXPECT_EQ(tokenizer_->Decode(ids), c["decoded_skip_special"]);
    if (!c.contains("prefix_decodes")) continue;
    for (size_t k = 1; k < ids.size(); ++k) {
      EXPECT_EQ(tokenizer_->Decode(absl::MakeSpan(ids).first(k), true), c["prefix_decodes"][k - 1]);
    }
  }
}

TEST_P(GoldenTokenizer, EncodesRandomUnicodeAsTheLibraryDoes) {
  const Json random = ReadJson(kGolden + "random.json")[GetParam()];
  ASSERT_EQ(random.size(), 120u);
  for (const Json& c : random) {
    SCOPED_TRACE(c["text"].dump());
    EXPECT_EQ(Json(tokenizer_->Encode(c["text"].get<std::string>(), {.parse_special = true})),
              c["ids"]);
  }
}

// Words that were encoded before come from a cache.
TEST_P(GoldenTokenizer, EncodesTheSecondTimeAsTheFirst) {
  for (int round = 0; round < 2; ++round) {
    for (const Json& c : expected_["cases"]) {
      EXPECT_EQ(Json(tokenizer_->Encode(c["text"].get<std::string>(), {.parse_special = true})),
                c["ids"]);
    }
  }
}

// Marks follow the bytes through normalisation: text that is marked in parts is marked whole where
// all parts are, and not where none is.
TEST_P(GoldenTokenizer, MarksTheTokensOfARange) {
  for (const Json& c : expected_["cases"]) {
    SCOPED_TRACE(c["text"].dump());
    const std::string text = c["text"];
    const std::vector<TextRange> all = {{0, text.size()}};
    std::vector<uint8_t> marks;
    EXPECT_EQ(Json(tokenizer_->EncodeMarked({text, all, all}, &marks)), c["ids"]);
    EXPECT_EQ(marks, std::vector<uint8_t>(c["ids"].size(), 1));
    EXPECT_EQ(Json(tokenizer_->EncodeMarked({text, all, {}}, &marks)), c["ids"]);
    EXPECT_EQ(marks, std::vector<uint8_t>(c["ids"].size(), 0));
  }
  const std::string text = "one two\nthree";
  const std::vector<TextRange> middle = {{4, 7}};
  std::vector<uint8_t> marks;
  const std::vector<int32_t> ids = tokenizer_->EncodeMarked({text, {}, middle}, &marks);
  std::string marked;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (marks[i]) marked += tokenizer_->TokenBytes(ids[i]);
  }
  EXPECT_THAT(marked, HasSubstr("two"));
  EXPECT_LE(marked.size(), 5u);
}

TEST_P(GoldenTokenizer, StreamsTheTextThatEachTokenCompletes) {
  for (const Json& c : expected_["cases"]) {
    SCOPED_TRACE(c["text"].dump());
    StreamDecoder stream(tokenizer_.get(), /*keep_special=*/true);
    std::string all;
    const std::vector<int32_t> ids = c["ids"];
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::string news = stream.Push(ids[i]);
      EXPECT_EQ(news, c["stream"][i]) << "token " << i;
      all += news;
    }
    const std::string rest = stream.Flush();
    EXPECT_EQ(rest, c.value("stream_tail_held_back", ""));
    EXPECT_EQ(all + rest, c["decoded"]);
  }
}

// In each layout, whatever special tokens it has.
TEST_P(GoldenTokenizer, SpecialTokensOfUserTextStayText) {
  int found = 0;
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    if (!tokenizer_->IsSpecial(id)) continue;
    ++found;
    const std::string text = tokenizer_->Decode({id}, /*keep_special=*/true);
    EXPECT_THAT(tokenizer_->Encode(text, {.parse_special = true}), ElementsAre(id));
    for (const std::string& said : {text, "a" + text + " b", text + text}) {
      const std::vector<int32_t> ids = tokenizer_->Encode(said);
      for (int32_t special = 0; special < tokenizer_->vocab_size(); ++special) {
        if (!tokenizer_->IsSpecial(special)) continue;
        EXPECT_THAT(ids, Not(Contains(special))) << said;
      }
      EXPECT_EQ(tokenizer_->Decode(ids), said);
    }
  }
  EXPECT_GT(found, 2);
}

// Every byte on its own, and what follows it: nothing that is given out is half a character.
TEST_P(GoldenTokenizer, StreamsOfAnyTokensAreWellFormed) {
  const uint32_t seed = 7;
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    StreamDecoder stream(tokenizer_.get(), true);
    for (int i = 0; i < 12; ++i) {
      const auto id =
          static_cast<int32_t>(random() % (i % 3 == 0 ? 300 : tokenizer_->vocab_size()));
      const std::string news = stream.Push(id);
      EXPECT_EQ(news, ReplaceInvalidUtf8(news)) << "seed " << seed;
    }
    const std::string rest = stream.Flush();
    EXPECT_EQ(rest, ReplaceInvalidUtf8(rest));
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTokenizer, ::testing::ValuesIn(kLayouts),
                         [](const auto& param) { return std::string(param.param); });

TEST(Tokenizer, MergesMayBeStrings) {
  const TempDir dir;
  dir.Write("tokenizer.json", ReadFile(kGolden + "qwen/tokenizer_string_merges.json").value());
  const auto strings = Tokenizer::Load(dir.path());
  ASSERT_THAT(strings, IsOk());
  const Json expected = ReadJson(kGolden + "qwen/expected.json");  // outlives the loop over it
  for (const Json& c : expected["cases"]) {
    EXPECT_EQ(Json((*strings)->Encode(c["text"].get<std::string>(), {.parse_special = true})),
              c["ids"]);
  }
}

TEST(Tokenizer, SpecialTokensInTextBecomeControlIdsOnlyOnRequest) {
  const auto tokenizer = Tokenizer::Load(kGolden + "gpt2_digits").value();
  const int32_t end = tokenizer->TokenId("<|im_end|>");
  EXPECT_THAT(tokenizer->Encode("<|im_end|>", {.parse_special = true}), ElementsAre(end));
  const std::vector<int32_t> plain = tokenizer->Encode("a<|im_end|>b");
  EXPECT_THAT(plain, ::testing::Not(::testing::Contains(end)));
  EXPECT_EQ(tokenizer->Decode(plain), "a<|im_end|>b");
}

TEST(Tokenizer, AnyBytesComeBackAsTextWithReplacements) {
  const auto tokenizer = Tokenizer::Bytes();
  // Unicode 3.9: one U+FFFD for each maximal ill-formed part.
  const std::string bytes = "a\xe2\x82g\xf0\x9f\x98\x80\xff\xc0\xaf\xed\xa0\x80z";
  std::vector<int32_t> ids;
  for (char c : bytes) ids.push_back(static_cast<uint8_t>(c));
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(tokenizer->Decode(ids), "a" + r + "g\xf0\x9f\x98\x80" + r + r + r + r + r + r + "z");
  EXPECT_EQ(tokenizer->Encode(bytes), tokenizer->Encode(tokenizer->Decode(ids)));
}

TEST(Tokenizer, RandomTextSurvivesTheRoundTrip) {
  const uint32_t seed = 20240607;
  std::mt19937 random(seed);
  for (const char* name : {"gpt2_digits", "llama3"}) {
    const auto tokenizer = Tokenizer::Load(kGolden + name).value();
    const std::vector<std::string> alphabet = {"a", "B", " ",    "\n",     "7",      "'s",
                                               "_", "é", "日本", "\u180e", "\u2028", "😀"};
    for (int i = 0; i < 500; ++i) {
      std::string text;
      for (int k = random() % 40; k > 0; --k) text += alphabet[random() % alphabet.size()];
      EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text)), text) << "seed " << seed;
    }
  }
}

TEST(Tokenizer, BytesTokenizerSavesAFileThatLoadsTheSame) {
  const TempDir dir;
  const auto bytes = Tokenizer::Bytes();
  EXPECT_EQ(bytes->vocab_size(), 259);
  EXPECT_EQ(bytes->TokenId("<|im_end|>"), 258);
  EXPECT_EQ(bytes->eos_id(), 258);
  ASSERT_THAT(bytes->Save(dir.path()), IsOk());
  const auto loaded = Tokenizer::Load(dir.path());
  ASSERT_THAT(loaded, IsOk());
  const std::string text = "12+34=46\n<think> é </think><|im_start|>";
  EXPECT_EQ(bytes->Encode(text).size(), text.size());
  for (bool special : {false, true}) {
    EXPECT_EQ((*loaded)->Encode(text, {.parse_special = special}),
              bytes->Encode(text, {.parse_special = special}));
  }
  EXPECT_EQ((*loaded)->eos_id(), 258);
}

TEST(Tokenizer, BytesThatAreNoTextAreReplacedBeforeEncoding) {
  const auto tokenizer = Tokenizer::Load(kGolden + "qwen").value();
  EXPECT_EQ(tokenizer->Encode("a\xff\xe2\x82z"), tokenizer->Encode("a\uFFFD\uFFFDz"));
}

TEST(Tokenizer, IdsMayHaveHolesButNotReachForMemory) {
  const TempDir dir;
  Json json = ReadJson(kGolden + "gpt2_digits/tokenizer.json");
  json["model"]["vocab"]["unreachable"] = 5000;
  dir.Write("tokenizer.json", json.dump());
  const auto tokenizer = Tokenizer::Load(dir.path());
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_EQ((*tokenizer)->vocab_size(), 5001);
  EXPECT_EQ((*tokenizer)->Decode({4000, 5000}), "unreachable");
  json["model"]["vocab"]["unreachable"] = 1 << 30;
  dir.Write("tokenizer.json", json.dump());
  EXPECT_THAT(Tokenizer::Load(dir.path()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1073741824")));
}

TEST(Tokenizer, DeepJsonIsRefusedBeforeItIsParsed) {
  const TempDir dir;
  for (const std::string& text :
       {std::string(1'000'000, '['),
        "{\"normalizer\": " + std::string(5000, '[') + std::string(5000, ']') + "}"}) {
    dir.Write("tokenizer.json", text);
    EXPECT_THAT(Tokenizer::Load(dir.path()).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("deep")));
  }
  dir.Write("tokenizer.json", ReadFile(kGolden + "qwen/tokenizer.json").value());
  dir.Write("tokenizer_config.json", R"({"chat_template": )" + std::string(5000, '[') + "}");
  EXPECT_THAT(Tokenizer::Load(dir.path()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tokenizer_config.json")));
  dir.Write("tokenizer_config.json", R"({"chat_template": [{"name": "x"}]})");
  EXPECT_THAT(Tokenizer::Load(dir.path()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("chat_template")));
}

TEST(Tokenizer, AddedTokensTakeSpacesAlongAndMindWords) {
  const TempDir dir;
  Json json = ReadJson(kGolden + "gpt2_digits/tokenizer.json");
  const auto added = [&](const char* text, const char* flag) {
    Json token = {{"id", 1720 + json["added_tokens"].size()}, {"content", text}};
    token[flag] = true;
    json["added_tokens"].push_back(token);
    return token["id"].get<int32_t>();
  };
  const int32_t left = added("<l>", "lstrip"), right = added("<r>", "rstrip");
  const int32_t word = added("cat", "single_word");
  dir.Write("tokenizer.json", json.dump());
  const auto tokenizer = Tokenizer::Load(dir.path()).value();
  const int32_t a = tokenizer->TokenId("a");
  EXPECT_THAT(tokenizer->Encode("a \n<l>a"), ElementsAre(a, left, a));
  EXPECT_THAT(tokenizer->Encode("a<r> \u3000a"), ElementsAre(a, right, a));
  EXPECT_THAT(tokenizer->Encode("a<r> <l>a"), ElementsAre(a, right, left, a));
  EXPECT_THAT(tokenizer->Encode("cat"), ElementsAre(word));
  EXPECT_THAT(tokenizer->Encode("(cat)"), Contains(word));
  EXPECT_THAT(tokenizer->Encode("cats"), Not(Contains(word)));
  EXPECT_THAT(tokenizer->Encode("écat"), Not(Contains(word)));
}

TEST(Tokenizer, IdsOutsideTheVocabularyDecodeToNothing) {
  const auto tokenizer = Tokenizer::Bytes();
  EXPECT_EQ(tokenizer->Decode({'a', -1, 100000, 'b'}), "ab");
  EXPECT_EQ(tokenizer->TokenBytes(-7), "");
  EXPECT_FALSE(tokenizer->IsSpecial(100000));
}

TEST(Tokenizer, NamesWhatIsBrokenOrUnsupported) {
  struct Case {
    const char* pointer;  // JSON pointer of what is replaced
    Json value;
    absl::StatusCode code;
    const char* named;
  };
  constexpr auto kBad = absl::StatusCode::kInvalidArgument;
  constexpr auto kNot = absl::StatusCode::kUnimplemented;
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", true}};
  const Case cases[] = {
      {"/normalizer", {{"type", "Lowercase"}}, kNot, "Lowercase"},
      {"/normalizer", {{"type", "NFC"}, {"strength", 3}}, kNot, "strength"},
      {"/normalizer", {{"type", "Sequence"}}, kBad, "normalizers"},
      {"/pre_tokenizer", {{"type", "Metaspace"}}, kBad, "replacement"},
      {"/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}}, kNot, "ByteLevel"},
      {"/pre_tokenizer/pretokenizers/1",
       {{"type", "Metaspace"}, {"replacement", "_"}},
       kNot,
       "Metaspace"},
      {"/pre_tokenizer", nullptr, kNot, "null"},
      {"/pre_tokenizer", byte_level, kNot, "add_prefix_space"},
      {"/post_processor", {{"type", "RobertaProcessing"}}, kNot, "RobertaProcessing"},
      {"/post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}}},
       kBad,
       "<s>"},
      {"/extra_field", 1, kNot, "extra_field"},
      {"/version", "2.0", kNot, "2.0"},
      {"/pre_tokenizer/pretokenizers/1", {{"type", "Punctuation"}}, kNot, "Punctuation"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "(a"}}}},
       kBad,
       "(a"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"behavior", "Shuffled"}, {"pattern", {{"Regex", "a"}}}},
       kNot,
       "Shuffled"},
      {"/decoder", {{"type", "WordPiece"}}, kNot, "WordPiece"},
      {"/model/type", "Unigram", kNot, "Unigram"},
      {"/model/byte_fallback", true, kNot, "byte_fallback"},
      {"/model/dropout", 0.1, kNot, "dropout"},
      {"/model/end_of_word_suffix", "</w>", kNot, "end_of_word_suffix"},
      {"/model/unk_token", "<nowhere>", kBad, "<nowhere>"},
      {"/model", nullptr, kBad, "model"},
      {"/model/vocab", Json::object(), kBad, "vocab"},
      {"/model/vocab/a", -3, kBad, "\"a\""},
      {"/model/vocab/a", 0, kBad, "used twice"},
      {"/model/vocab/a", 4000000000u, kBad, "4000000000"},
      {"/model/merges/0", {"no", "such token"}, kBad, "merge 0"},
      {"/model/merges/5", 7, kBad, "merge 5"},
      {"/model/merges/5", "a b c", kBad, "merge 5"},
      {"/model/merges/0", {"", "a"}, kBad, "merge 0"},
      {"/model/merges", nullptr, kBad, "merges"},
      {"/added_tokens/1/content", "<|endoftext|>", kBad, "<|endoftext|>"},
      {"/added_tokens/0/id", 3, kBad, "<|endoftext|>"},
      {"/added_tokens/0/content", "", kBad, "content"},
      {"/added_tokens/0", 5, kBad, "added token"},
  };
  const TempDir dir;
  const Json good = ReadJson(kGolden + "gpt2_digits/tokenizer.json");
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.pointer) + " = " + c.value.dump());
    Json json = good;
    json[Json::json_pointer(c.pointer)] = c.value;
    dir.Write("tokenizer.json", json.dump());
    EXPECT_THAT(Tokenizer::Load(dir.path()).status(), StatusIs(c.code, HasSubstr(c.named)));
    EXPECT_THAT(Tokenizer::Load(dir.path()).status(),
                StatusIs(c.code, HasSubstr(dir.File("tokenizer.json"))));
  }
  dir.Write("tokenizer.json", good.dump().substr(0, 5000));
  EXPECT_THAT(Tokenizer::Load(dir.path()).status(), StatusIs(kBad, HasSubstr("JSON")));
  dir.Write("tokenizer.json", good.dump());
  dir.Write("tokenizer_config.json", R"({"eos_token": "<|nowhere|>"})");
  EXPECT_THAT(Tokenizer::Load(dir.path()).status(), StatusIs(kBad, HasSubstr("<|nowhere|>")));
  const TempDir empty;
  EXPECT_THAT(Tokenizer::Load(empty.path()).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("tokenizer.json")));
}

}  // namespace
}  // namespace millrace
