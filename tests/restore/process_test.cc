// SPDX-License-Identifier: Apache-2.0
// Across real processes: one stores and ends, another one restores.
#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/restore/rig.h"
#include "tests/support/catch.hpp"

namespace {

using kvstrata::resume_mode;

struct ChildResult {
  uint64_t usable_tokens = 0;
  uint64_t replay_from = 0;
  std::vector<float> logits;
};

class Directory {
 public:
  Directory() {
    path_ = (std::filesystem::temp_directory_path() / "kvstrata-process-XXXXXX").string();
    REQUIRE(mkdtemp(path_.data()) != nullptr);
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

ChildResult RunChild(const Directory& directory, uint64_t length, resume_mode mode) {
  const std::string output = directory.path() + "/output";
  const std::string command = std::string("\"") + RESTORE_CHILD + "\" \"" + directory.path() + "/store\" " +
                              std::to_string(length) + " " + std::to_string(static_cast<int>(mode)) + " \"" + output +
                              "\"";
  REQUIRE(std::system(command.c_str()) == 0);
  ChildResult out;
  std::ifstream file(output);
  file >> out.usable_tokens >> out.replay_from;
  for (uint32_t bits; file >> bits;) {
    float logit;
    std::memcpy(&logit, &bits, sizeof logit);
    out.logits.push_back(logit);
  }
  return out;
}

TEST_CASE("another process goes on where one has ended") {
  const std::vector<int32_t> tokens = restore_test::TestTokens(120);
  const std::span<const int32_t> all = tokens;
  const Directory directory;
  const auto cold = [&](uint64_t length) {
    return restore_test::ColdLogits(restore_test::TinyModel(), all.first(length));
  };

  const ChildResult first = RunChild(directory, 53, resume_mode::snapshot);
  CHECK(first.usable_tokens == 0);
  CHECK(restore_test::SameBits(first.logits, cold(53)));

  const ChildResult second = RunChild(directory, 90, resume_mode::snapshot);
  CHECK(second.usable_tokens == 48);  // the last block boundary of the first prompt
  CHECK(restore_test::SameBits(second.logits, cold(90)));

  const ChildResult third = RunChild(directory, 120, resume_mode::full_replay);
  CHECK(third.usable_tokens == 80);
  CHECK(third.replay_from == 80 - 28);
  CHECK(restore_test::SameBits(third.logits, cold(120)));
}

}  // namespace
