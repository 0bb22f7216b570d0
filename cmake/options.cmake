# Every user-visible switch of the build. All are prefixed KVSTRATA_ and default to off in a parent project.
option(KVSTRATA_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(KVSTRATA_BUILD_EXAMPLES "Build the examples and the mini engine" ${PROJECT_IS_TOP_LEVEL})
option(KVSTRATA_BUILD_BENCHMARKS "Build the benchmarks" OFF)
option(KVSTRATA_INSTALL "Generate the install rules" ${PROJECT_IS_TOP_LEVEL})
option(KVSTRATA_WERROR "Treat warnings as errors" OFF)
set(KVSTRATA_SANITIZE "" CACHE STRING "Sanitizers for everything built here, e.g. address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()
