# Jinja templates.
millrace_library(NAME jinja
  SRCS jinja/text.cc jinja/value.cc jinja/print.cc jinja/lexer.cc jinja/expression_parser.cc jinja/suffix_parser.cc jinja/parser.cc
       jinja/interpreter.cc jinja/evaluate.cc jinja/members.cc jinja/functions.cc jinja/tests.cc jinja/methods.cc
       jinja/text_functions.cc jinja/filters.cc jinja/text_filters.cc jinja/sequence_filters.cc jinja/template.cc
       byte_level.cc unicode_classes.cc
  DEPS nlohmann_json::nlohmann_json PkgConfig::UTF8PROC absl::flat_hash_map absl::status absl::statusor
       absl::strings absl::str_format absl::span absl::time)

# Text: the tokenizer and the chat templates. No torch.
millrace_library(NAME text
  SRCS normalizer.cc word_scanner.cc pretokenizer.cc word_cache.cc bpe.cc added_tokens.cc token_decoder.cc
       tokenizer_json.cc tokenizer_json_steps.cc tokenizer_json_writer.cc tokenizer.cc stream_decoder.cc
       chat_template.cc
  DEPS millrace::jinja millrace::common nlohmann_json::nlohmann_json PkgConfig::PCRE2 PkgConfig::UTF8PROC
       PkgConfig::XXHASH absl::flat_hash_map absl::flat_hash_set absl::function_ref absl::status absl::statusor
       absl::strings absl::str_format absl::span)
