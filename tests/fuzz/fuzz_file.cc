#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/fuzz_target.h"

namespace millrace::testing {
namespace {

void Require(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::abort();
}

}  // namespace

FuzzFile::FuzzFile() : fd_(memfd_create("fuzz", 0)) {
  Require(fd_ >= 0, "memfd_create");
  path_ = "/proc/self/fd/" + std::to_string(fd_);
}

FuzzFile::~FuzzFile() { close(fd_); }

const std::string& FuzzFile::Write(const uint8_t* data, size_t size) {
  Require(ftruncate(fd_, 0) == 0, "ftruncate");
  Require(pwrite(fd_, data, size, 0) == static_cast<ssize_t>(size), "pwrite");
  return path_;
}

}  // namespace millrace::testing
