// SPDX-License-Identifier: Apache-2.0
// The one include of Catch2 in the tests: Debian 12 ships version 2, many users have version 3. Tests use only
// what both offer (TEST_CASE, SECTION, CHECK, REQUIRE, INFO, CAPTURE, GENERATE); no Approx, no matchers.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
