// What a fuzz program is made of: each links one target file, which defines FuzzTargetOf(), and one
// of two mains: libFuzzer's (clang) or the mutation driver of fuzz_driver.cc (any compiler).
//
//   int FuzzThing(const uint8_t* data, size_t size);   // returns 0, must neither crash nor hang
//   FuzzTarget FuzzTargetOf() { return {&FuzzThing, {"a valid input", ...}, {"word", ...}}; }
#ifndef MILLRACE_TESTS_FUZZ_FUZZ_TARGET_H_
#define MILLRACE_TESTS_FUZZ_FUZZ_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace::testing {

struct FuzzTarget {
  int (*run)(const uint8_t* data, size_t size);
  std::vector<std::string> seeds;       // inputs to start from, most of them valid
  std::vector<std::string> dictionary;  // strings worth inserting
};
FuzzTarget FuzzTargetOf();

// One in-memory file whose contents change from input to input, for readers that take a path.
class FuzzFile {
 public:
  FuzzFile();  // aborts when the system has no memory files
  ~FuzzFile();
  FuzzFile(const FuzzFile&) = delete;
  FuzzFile& operator=(const FuzzFile&) = delete;
  const std::string& Write(const uint8_t* data, size_t size);  // the path to open

 private:
  int fd_;
  std::string path_;
};

}  // namespace millrace::testing

#endif  // MILLRACE_TESTS_FUZZ_FUZZ_TARGET_H_
