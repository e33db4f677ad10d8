// Forgiving reads of JSON lines: what is missing, null or of another type is the default, so that a
// display never stops a run. Thread-safe.
#ifndef MILLRACE_CLI_PROGRESS_FORMAT_H_
#define MILLRACE_CLI_PROGRESS_FORMAT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace millrace {

double JsonNumber(const nlohmann::json& object, const char* key, double otherwise = 0);
int64_t JsonInteger(const nlohmann::json& object, const char* key, int64_t otherwise = 0);
std::string JsonText(const nlohmann::json& object, const char* key);
// An object member, or an empty object.
const nlohmann::json& JsonObject(const nlohmann::json& object, const char* key);

// `text` as one word of a shell's command line: quoted when it has to be.
std::string ShellWord(const std::string& text);

}  // namespace millrace

#endif  // MILLRACE_CLI_PROGRESS_FORMAT_H_
