// A folder that lasts as long as the test.
#ifndef MILLRACE_TESTS_MODEL_TEMP_DIR_H_
#define MILLRACE_TESTS_MODEL_TEMP_DIR_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace millrace::testing {

class TempDir {
 public:
  TempDir() : path_(::testing::TempDir() + "millrace-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << path_;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& contents) const {
    std::ofstream(File(name), std::ios::binary) << contents;
    return File(name);
  }
  size_t entries() const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      static_cast<void>(entry);
      ++count;
    }
    return count;
  }

 private:
  std::string path_;
};

}  // namespace millrace::testing

#endif  // MILLRACE_TESTS_MODEL_TEMP_DIR_H_
