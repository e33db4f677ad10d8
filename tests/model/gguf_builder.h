// Builds GGUF files for tests, right ones and lying ones.
#ifndef MILLRACE_TESTS_MODEL_GGUF_BUILDER_H_
#define MILLRACE_TESTS_MODEL_GGUF_BUILDER_H_

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::testing {

template <typename T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
inline std::string Text(const std::string& s) { return Raw<uint64_t>(s.size()) + s; }

struct GgufBuilder {
  std::string values, infos, data;
  uint64_t value_count = 0, tensor_count = 0;
  uint32_t version = 3;

  void Add(const std::string& key, uint32_t kind, const std::string& bytes) {
    values += Text(key) + Raw(kind) + bytes;
    ++value_count;
  }
  void String(const std::string& key, const std::string& s) { Add(key, 8, Text(s)); }
  void Integer(const std::string& key, uint32_t v) { Add(key, 4, Raw(v)); }
  void Float(const std::string& key, float v) { Add(key, 6, Raw(v)); }
  void Strings(const std::string& key, const std::vector<std::string>& list) {
    std::string bytes = Raw<uint32_t>(8) + Raw<uint64_t>(list.size());
    for (const std::string& s : list) bytes += Text(s);
    Add(key, 9, bytes);
  }
  void Integers(const std::string& key, const std::vector<int32_t>& list) {
    std::string bytes = Raw<uint32_t>(5) + Raw<uint64_t>(list.size());
    for (int32_t v : list) bytes += Raw(v);
    Add(key, 9, bytes);
  }
  // dims innermost first.
  void Tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
              const std::string& bytes) {
    data.resize((data.size() + 31) / 32 * 32);
    infos += Text(name) + Raw<uint32_t>(dims.size());
    for (uint64_t dim : dims) infos += Raw(dim);
    infos += Raw(type) + Raw<uint64_t>(data.size());
    data += bytes;
    ++tensor_count;
  }
  std::string File() const {
    std::string file =
        "GGUF" + Raw(version) + Raw(tensor_count) + Raw(value_count) + values + infos;
    file.resize((file.size() + 31) / 32 * 32);
    return file + data;
  }
};

}  // namespace millrace::testing

#endif  // MILLRACE_TESTS_MODEL_GGUF_BUILDER_H_
