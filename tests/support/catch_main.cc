// SPDX-License-Identifier: Apache-2.0
// The main function of every Catch2 test program, for Catch2 2 and 3 alike.
#define CATCH_CONFIG_RUNNER
#include "tests/support/catch.hpp"

int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }
