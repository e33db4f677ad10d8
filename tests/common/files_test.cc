#include "common/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::IsOkAndHolds;
using ::millrace::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class FilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = JoinPath(::testing::TempDir(), "files_test_XXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { EXPECT_OK(RemoveRecursively(dir_)); }
  std::string Path(const std::string& name) const { return JoinPath(dir_, name); }
  std::string dir_;
};

TEST_F(FilesTest, WhatWasWrittenIsReadBack) {
  const std::string binary("a\0b\nc", 5);
  ASSERT_OK(WriteFileAtomically(Path("f"), binary));
  EXPECT_THAT(ReadFile(Path("f")), IsOkAndHolds(binary));
}

TEST_F(FilesTest, PiecesAreWrittenOneAfterAnother) {
  const std::vector<absl::string_view> pieces = {"ab", "", "cd"};
  ASSERT_OK(WriteFileAtomically(Path("f"), pieces));
  EXPECT_THAT(ReadFile(Path("f")), IsOkAndHolds(std::string("abcd")));
}

TEST_F(FilesTest, AWriteReplacesTheOldFileAndLeavesNoPart) {
  ASSERT_OK(WriteFileAtomically(Path("f"), "old and long"));
  ASSERT_OK(WriteFileAtomically(Path("f"), "new"));
  EXPECT_THAT(ReadFile(Path("f")), IsOkAndHolds(std::string("new")));
  EXPECT_THAT(ListDirectory(dir_), IsOkAndHolds(ElementsAre("f")));
}

TEST_F(FilesTest, AFailedWriteNamesThePathAndLeavesNothing) {
  ASSERT_OK(MakeDirectories(Path("target/inner")));  // rename onto a folder fails
  EXPECT_THAT(WriteFileAtomically(Path("target"), "x"), Not(testing::IsOk()));
  EXPECT_THAT(ListDirectory(dir_), IsOkAndHolds(ElementsAre("target")));
  EXPECT_THAT(WriteFileAtomically(Path("no/such/f"), "x"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(Path("no/such/f"))));
}

TEST_F(FilesTest, AMissingFileIsNotFoundAndNamed) {
  EXPECT_THAT(ReadFile(Path("nope")), StatusIs(absl::StatusCode::kNotFound, HasSubstr("nope")));
  EXPECT_THAT(MappedFile::Open(Path("nope")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nope")));
  EXPECT_THAT(ListDirectory(Path("nope")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nope")));
  EXPECT_FALSE(FileExists(Path("nope")));
}

TEST_F(FilesTest, AFolderBelowAFileCannotBeMadeOrUsed) {
  ASSERT_OK(WriteFileAtomically(Path("file"), "x"));
  EXPECT_THAT(MakeDirectories(Path("file/sub")), Not(testing::IsOk()));
  EXPECT_THAT(CheckWritableDirectory(Path("file")),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("not a folder")));
  // /proc refuses files to everybody, root included.
  EXPECT_THAT(CheckWritableDirectory("/proc"), Not(testing::IsOk()));
}

TEST_F(FilesTest, AWritableFolderIsMadeAndLeftEmpty) {
  EXPECT_OK(CheckWritableDirectory(Path("a/b/c")));
  EXPECT_THAT(ListDirectory(Path("a/b/c")), IsOkAndHolds(IsEmpty()));
}

TEST_F(FilesTest, AMapShowsTheBytesAndMovesWithItsOwner) {
  ASSERT_OK(WriteFileAtomically(Path("f"), "hello"));
  ASSERT_OK_AND_ASSIGN(MappedFile first, MappedFile::Open(Path("f")));
  MappedFile second = std::move(first);
  ASSERT_EQ(second.bytes().size(), 5u);
  EXPECT_EQ(static_cast<char>(second.bytes()[4]), 'o');
  EXPECT_TRUE(first.bytes().empty());
}

TEST_F(FilesTest, AnEmptyFileMapsToNoBytes) {
  ASSERT_OK(WriteFileAtomically(Path("f"), ""));
  ASSERT_OK_AND_ASSIGN(MappedFile map, MappedFile::Open(Path("f")));
  EXPECT_TRUE(map.bytes().empty());
}

TEST(JoinPathTest, PutsOneSlashBetween) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
  EXPECT_EQ(JoinPath("a", "/b"), "/b");
}

}  // namespace
}  // namespace millrace
