// The entry points of libFuzzer. A corpus folder given on the command line that is empty is filled
// with the target's seeds, and its dictionary is written beside it (FOLDER.dict, for -dict=).
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/fuzz_target.h"

namespace {

const millrace::testing::FuzzTarget& Target() {
  static const auto* const target =
      new millrace::testing::FuzzTarget(millrace::testing::FuzzTargetOf());
  return *target;
}

void WriteCorpus(const std::filesystem::path& folder) {
  int n = 0;
  for (const std::string& seed : Target().seeds) {
    std::ofstream(folder / ("seed-" + std::to_string(n++)), std::ios::binary) << seed;
  }
  std::ofstream dict(folder.string() + ".dict");
  for (const std::string& word : Target().dictionary) {
    dict << '"';
    for (const unsigned char c : word) {
      char hex[8];
      std::snprintf(hex, sizeof(hex), "\\x%02x", c);
      dict << hex;
    }
    dict << "\"\n";
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::filesystem::path path((*argv)[i]);
    if (std::filesystem::is_directory(path) && std::filesystem::is_empty(path)) WriteCorpus(path);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return Target().run(data, size);
}
