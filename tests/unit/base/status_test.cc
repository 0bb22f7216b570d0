// SPDX-License-Identifier: Apache-2.0
#include "lib/base/status.h"

#include <cerrno>

#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;

TEST_CASE("a status carries code, native code and field") {
  const absl::Status status = base::MakeStatus(base::Code::kLocked, "path", "in use", 11);
  CHECK(base::CodeOf(status) == base::Code::kLocked);
  CHECK(base::NativeCodeOf(status) == 11);
  CHECK(base::FieldOf(status) == "path");
  CHECK(status.message() == "path: in use");
}

TEST_CASE("operating-system errors map to the code a caller can act on") {
  CHECK(base::CodeOf(base::IoError("write", "f", ENOSPC)) == base::Code::kNoSpace);
  CHECK(base::CodeOf(base::IoError("open", "f", ENOENT)) == base::Code::kNotFound);
  CHECK(base::CodeOf(base::IoError("open", "f", EACCES)) == base::Code::kReadOnly);
  CHECK(base::CodeOf(base::IoError("read", "f", EIO)) == base::Code::kIo);
}

TEST_CASE("a foreign status maps by its canonical code") {
  CHECK(base::CodeOf(absl::OkStatus()) == base::Code::kOk);
  CHECK(base::CodeOf(absl::DataLossError("x")) == base::Code::kCorrupt);
  CHECK(base::CodeOf(absl::UnknownError("x")) == base::Code::kInternal);
}
