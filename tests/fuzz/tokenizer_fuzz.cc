// Any bytes as tokenizer.json: it is refused, or the tokenizer encodes and decodes whatever it is
// given.
#include <cstdlib>
#include <string>

#include "model/added_tokens.h"
#include "model/byte_level.h"
#include "model/tokenizer_json.h"
#include "tests/fuzz/fuzz_target.h"

namespace millrace::testing {
namespace {

const char kByteLevel[] =
    R"({"version":"1.0","added_tokens":[{"id":7,"content":"<s>","special":true,"lstrip":true}],)"
    R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Replace","pattern":{"String":"x"},"content":"yy"}]},)"
    R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},)"
    R"({"type":"Split","pattern":{"Regex":"\\s+|\\w+"},"behavior":"Isolated","invert":false},)"
    R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true}]},)"
    R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],)"
    R"("special_tokens":{"<s>":{"id":"<s>","ids":[7],"tokens":["<s>"]}}},)"
    R"("decoder":{"type":"ByteLevel"},)"
    R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"Ġ":3,"1":4,"abab":5},"merges":[["a","b"],"ab ab"]}})";
const char kFallback[] =
    R"({"added_tokens":[],"normalizer":{"type":"Prepend","prepend":"_"},"pre_tokenizer":null,)"
    R"("decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"_"},"content":" "},)"
    R"({"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},)"
    R"("model":{"type":"BPE","unk_token":"u","fuse_unk":true,"byte_fallback":true,"vocab":{"u":0,"_":1,"a":2,"_a":3,"<0x41>":4},)"
    R"("merges":["_ a"]}})";
const char kMetaspace[] =
    R"({"pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":true},)"
    R"("decoder":{"type":"Metaspace","replacement":"_","prepend_scheme":"first"},)"
    R"("model":{"vocab":{"a":0},"merges":[],"ignore_merges":true}})";

int FuzzTokenizer(const uint8_t* data, size_t size) {
  const auto parts =
      ParseTokenizerJson(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!parts.ok()) return 0;
  for (const char* text : {"", "a", "ab abab 1x <s> _a\n", "e\u0301 \xf0\x9f\x98\x80", "   "}) {
    std::string storage;
    const absl::string_view normal = parts->normalizer.Apply(text, &storage);
    std::vector<int32_t> ids;
    parts->pretokenizer.Split(normal,
                              [&](absl::string_view word) { parts->bpe.Encode(word, &ids); });
    std::vector<std::string> texts = {"<0x41>", "_a", "Ġ"};
    for (const auto& [token, id] : parts->bpe.vocab()) {
      if (!ids.empty() && id == ids[0]) texts.push_back(token);
    }
    const std::string decoded = parts->decoder.Decode(texts);
    if (ReplaceInvalidUtf8(decoded) != decoded) std::abort();
  }
  return 0;
}

}  // namespace

FuzzTarget FuzzTargetOf() {
  return {&FuzzTokenizer,
          {kByteLevel, kFallback, kMetaspace},
          {"\"type\":",
           "\"Sequence\"",
           "\"normalizers\":",
           "\"pretokenizers\":",
           "\"decoders\":",
           "\"pattern\":{\"Regex\":\"",
           "(?i:",
           "\\\\p{L}",
           "(a+)+$",
           "\"invert\":true",
           "\"behavior\":\"Removed\"",
           "2097151",
           "2097152",
           "18446744073709551615",
           "-1",
           "[[[[",
           "null",
           "\"ids\":[",
           "\"special\":true",
           "\"normalized\":true",
           "\\u0000",
           "<0x41>"}};
}

}  // namespace millrace::testing
