// Reads the golden JSON files; the strings "nan", "inf", "-inf" stand for those values.
#ifndef MILLRACE_TESTS_LEARNER_GOLDEN_JSON_H_
#define MILLRACE_TESTS_LEARNER_GOLDEN_JSON_H_

#include <cmath>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace millrace::testing {

inline nlohmann::json ReadGolden(const std::string& name) {
  const std::string path = std::string(MILLRACE_GOLDEN_DIR) + "/" + name;
  std::ifstream in(path);
  if (!in) throw std::runtime_error("missing golden file " + path);
  return nlohmann::json::parse(in);
}

inline double Number(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.get<std::string>();
  if (text == "nan") return std::nan("");
  return text == "inf" ? std::numeric_limits<double>::infinity()
                       : -std::numeric_limits<double>::infinity();
}

// All numbers of an array of any depth, in order.
inline void Flatten(const nlohmann::json& value, std::vector<double>* out) {
  if (!value.is_array()) {
    out->push_back(Number(value));
    return;
  }
  for (const auto& item : value) Flatten(item, out);
}
inline std::vector<double> Flatten(const nlohmann::json& value) {
  std::vector<double> out;
  Flatten(value, &out);
  return out;
}

}  // namespace millrace::testing

#endif  // MILLRACE_TESTS_LEARNER_GOLDEN_JSON_H_
