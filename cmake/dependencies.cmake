# Third-party packages, all from the system: nothing is downloaded at configure time.
# cmake/install-packages.sh names the Debian packages that hold them.
find_package(Threads REQUIRED)
if(KVSTRATA_BUNDLED_ABSEIL)
  include(cmake/bundled-abseil.cmake)
else()
  find_package(absl REQUIRED CONFIG)
endif()
find_package(zstd REQUIRED CONFIG)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
# The cpu kernels' portable vectors. Its headers alone are used: its library, which may abort, is not linked.
find_path(HIGHWAY_INCLUDE_DIR hwy/highway.h REQUIRED)
mark_as_advanced(HIGHWAY_INCLUDE_DIR)
# JSON is read in one place only, a model's config.json (lib/layout); header-only.
find_package(nlohmann_json 3.9 REQUIRED CONFIG)
if(KVSTRATA_BUILD_TESTS)
  # Catch2 2 (Debian 12) and 3 are both supported; tests/support/catch.hpp hides the difference.
  find_package(Catch2 REQUIRED CONFIG)
  # The tidy, ABI and consumer tests are Python scripts; standard library only.
  find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
endif()
if(KVSTRATA_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED CONFIG)
  # Runs callgrind (benchmarks/call_cost).
  find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
endif()
