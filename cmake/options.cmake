# Every user-visible switch of the build. All are prefixed KVSTRATA_ and default to off in a parent project.
option(KVSTRATA_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(KVSTRATA_BUILD_EXAMPLES "Build the examples and the mini engine" ${PROJECT_IS_TOP_LEVEL})
option(KVSTRATA_BUILD_BENCHMARKS "Build the benchmarks" OFF)
option(KVSTRATA_INSTALL "Generate the install rules" ${PROJECT_IS_TOP_LEVEL})
option(KVSTRATA_WERROR "Treat warnings as errors" OFF)
option(KVSTRATA_PRECOMPILE_HEADERS "Parse the headers that the library shares once, to build faster" OFF)
set(_cuda off)
if(PROJECT_IS_TOP_LEVEL)
  set(_cuda auto)
endif()
set(KVSTRATA_ENABLE_CUDA ${_cuda} CACHE STRING "Build libkvstrata_cuda: on, off or auto (where a CUDA compiler is)")
set_property(CACHE KVSTRATA_ENABLE_CUDA PROPERTY STRINGS auto on off)
set(KVSTRATA_SANITIZE "" CACHE STRING "Sanitizers for everything built here, e.g. address,undefined or thread")
set(KVSTRATA_BUNDLED_ABSEIL "" CACHE PATH "Abseil's source, to be compiled into the libraries; empty: the system's")

# A misspelt switch would be ignored in silence and the wrong thing built: refuse it.
set(KVSTRATA_OPTIONS KVSTRATA_BUILD_TESTS KVSTRATA_BUILD_EXAMPLES KVSTRATA_BUILD_BENCHMARKS KVSTRATA_INSTALL
  KVSTRATA_WERROR KVSTRATA_PRECOMPILE_HEADERS KVSTRATA_ENABLE_CUDA KVSTRATA_SANITIZE KVSTRATA_BUNDLED_ABSEIL)
get_cmake_property(_cache_names CACHE_VARIABLES)
list(FILTER _cache_names INCLUDE REGEX "^KVSTRATA_")
foreach(_name IN LISTS _cache_names)
  if(NOT _name IN_LIST KVSTRATA_OPTIONS)
    list(JOIN KVSTRATA_OPTIONS ", " _known)
    message(FATAL_ERROR "${_name} is not an option of kvstrata; there are ${_known}. "
      "Once removed from the command line, -U ${_name} removes it from the cache.")
  endif()
endforeach()

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

# A build with tests also makes Debian's packages, whose libraries lie where multiarch wants them; by itself CMake does
# that for the prefix /usr alone. Loader, CMake and pkg-config look there below any other prefix as well.
if(KVSTRATA_BUILD_TESTS AND EXISTS /etc/debian_version AND CMAKE_LIBRARY_ARCHITECTURE)
  set(CMAKE_INSTALL_LIBDIR lib/${CMAKE_LIBRARY_ARCHITECTURE} CACHE PATH "Libraries, below the prefix")
endif()

# In this directory and below only: a parent project keeps its own. The core is C++20, public headers are C++17.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_EXTENSIONS OFF)
