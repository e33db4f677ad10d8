# Text: the tokenizer and the chat templates. No torch.
millrace_library(NAME text
  SRCS unicode_classes.cc byte_level.cc normalizer.cc word_scanner.cc pretokenizer.cc word_cache.cc bpe.cc
       added_tokens.cc token_decoder.cc tokenizer_json.cc tokenizer_json_steps.cc tokenizer_json_writer.cc
       tokenizer.cc stream_decoder.cc chat_format.cc
  DEPS millrace::common nlohmann_json::nlohmann_json PkgConfig::PCRE2 PkgConfig::UTF8PROC PkgConfig::XXHASH
       absl::flat_hash_map absl::flat_hash_set absl::function_ref absl::status absl::statusor absl::strings
       absl::str_format absl::span)
