// Encodes a text with one thread, or does single lines for a comparison with other libraries.
//
//   tokenizer_bench MODEL --text FILE [--piece-bytes N]
//     prints {"tokens", "bytes", "seconds", "cpu_seconds", "tokens_per_second"}, the last of CPU
//     time, which a busy machine does not stretch; a piece of 0 bytes is the whole text
//   tokenizer_bench MODEL --lines < JSON strings, one a line
//     prints {"ids", "around", "text"} for each: ids with special tokens recognised, with what the
//     post-processor adds, and decoded again
//   tokenizer_bench - --render < {"template", "variables"}, one a line
//     prints {"text"} or {"error"} for each
#include <chrono>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <string>

#include "CLI/CLI.hpp"
#include "common/files.h"
#include "model/jinja/template.h"
#include "model/tokenizer.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using Json = nlohmann::json;

int Lines(const Tokenizer& tokenizer) {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const std::string text = Json::parse(line).get<std::string>();
    const std::vector<int32_t> ids = tokenizer.Encode(text, {.parse_special = true});
    std::cout << Json{{"ids", ids},
                      {"around",
                       tokenizer.Encode(text, {.parse_special = true, .add_special = true})},
                      {"text", tokenizer.Decode(ids, /*keep_special=*/true)}}
                     .dump()
              << '\n';
  }
  return 0;
}

int Render() {
  using Ordered = nlohmann::ordered_json;
  for (std::string line; std::getline(std::cin, line);) {
    const Ordered request = Ordered::parse(line);
    jinja::Variables variables;
    for (const auto& [name, value] : request["variables"].items()) {
      variables.emplace_back(name, jinja::Value::FromJson(value, 1));
    }
    absl::StatusOr<jinja::Text> text;
    const auto parsed = jinja::Template::Parse(request["template"].get<std::string>());
    text = parsed.ok() ? (*parsed)->Render(variables, {}) : parsed.status();
    const Json out = text.ok() ? Json{{"text", text->bytes()}}
                               : Json{{"error", std::string(text.status().message())}};
    std::cout << out.dump() << '\n';
  }
  return 0;
}

// Ends of pieces of about `bytes`, between characters.
std::vector<size_t> Ends(const std::string& text, size_t bytes) {
  std::vector<size_t> ends;
  for (size_t at = bytes; bytes > 0 && at < text.size(); at += bytes) {
    while (at < text.size() && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80) ++at;
    ends.push_back(at);
  }
  ends.push_back(text.size());
  return ends;
}

int Measure(const Tokenizer& tokenizer, const std::string& file, size_t piece_bytes) {
  const auto text = ReadFile(file);
  if (!text.ok()) {
    std::fprintf(stderr, "tokenizer_bench: %s\n", std::string(text.status().message()).c_str());
    return 1;
  }
  const std::vector<size_t> ends = Ends(*text, piece_bytes);
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t cpu_start = std::clock();
  size_t tokens = 0, begin = 0;
  for (size_t end : ends) {
    tokens += tokenizer.Encode(absl::string_view(*text).substr(begin, end - begin)).size();
    begin = end;
  }
  const double cpu_seconds = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::cout << Json{{"tokens", tokens},
                    {"bytes", text->size()},
                    {"seconds", seconds},
                    {"cpu_seconds", cpu_seconds},
                    {"tokens_per_second", static_cast<double>(tokens) / cpu_seconds}}
                   .dump()
            << '\n';
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  CLI::App app{"Tokenizer speed"};
  std::string model, text;
  size_t piece_bytes = 0;
  bool lines = false, render = false;
  app.add_option("model", model)->required();
  app.add_option("--text", text);
  app.add_option("--piece-bytes", piece_bytes);
  app.add_flag("--lines", lines);
  app.add_flag("--render", render);
  CLI11_PARSE(app, argc, argv);
  if (render) return millrace::Render();
  const auto tokenizer = millrace::Tokenizer::Load(model);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "tokenizer_bench: %s\n",
                 std::string(tokenizer.status().message()).c_str());
    return 1;
  }
  return lines ? millrace::Lines(**tokenizer) : millrace::Measure(**tokenizer, text, piece_bytes);
}
