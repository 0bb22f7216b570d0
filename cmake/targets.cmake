# How a layer, and a test of a layer, is built. One function each, so that every target gets the same flags.

add_library(kvstrata_flags INTERFACE)
# No contraction of a*b+c: a compiler that fuses where it likes would give other bits than the one beside it, and
# the library promises equal bits.
target_compile_options(kvstrata_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
  -ffp-contract=off $<$<BOOL:${KVSTRATA_WERROR}>:-Werror>)
if(KVSTRATA_SANITIZE)
  target_compile_options(kvstrata_flags INTERFACE -fsanitize=${KVSTRATA_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all
    # GCC's flow analysis does not see through its own instrumentation: false alarms even in <regex>.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(kvstrata_flags INTERFACE -fsanitize=${KVSTRATA_SANITIZE})
endif()

# The sanitizers' checks around every CHECK cost the compiler most of a stage's time and gain nothing there. What is
# tested keeps them all and stays optimised, and so do programs whose own models compute most of the time.
set(_test_options)
if(KVSTRATA_SANITIZE)
  list(APPEND _test_options -O0)
  if(KVSTRATA_SANITIZE MATCHES "undefined")
    list(APPEND _test_options -fno-sanitize=null,alignment,object-size,pointer-overflow)
  endif()
endif()

# Headers that most files include are parsed once for all tests, which halves the time that they take to compile, and on
# demand for all layers. Some build of the library goes without, so that a file which forgets an include fails there.
# GCC 12 forgets meanwhile that they are the system's: its false alarms about std::string + "literal" come through.
set(_precompiled_options
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-array-bounds;-Wno-restrict;-Wno-stringop-overflow>)
set(_headers <algorithm> <array> <atomic> <chrono> <cstddef> <cstdint> <cstring> <functional> <map> <memory> <mutex>
  <optional> <set> <span> <string> <thread> <utility> <vector> <absl/status/status.h> <absl/status/statusor.h>)
set(_no_source ${PROJECT_BINARY_DIR}/precompiled.cc)  # CMake precompiles headers for a target, and that has a source
file(CONFIGURE OUTPUT ${_no_source} CONTENT "// See cmake/targets.cmake.\n")
if(KVSTRATA_PRECOMPILE_HEADERS)
  add_library(kvstrata_layer_headers OBJECT ${_no_source})
  set_target_properties(kvstrata_layer_headers PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(kvstrata_layer_headers PRIVATE kvstrata_flags absl::statusor)
  target_precompile_headers(kvstrata_layer_headers PRIVATE ${_headers})
endif()
if(KVSTRATA_BUILD_TESTS)
  add_library(kvstrata_test_headers OBJECT ${_no_source})
  target_include_directories(kvstrata_test_headers PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(kvstrata_test_headers PRIVATE kvstrata_flags Catch2::Catch2 absl::statusor)
  target_compile_options(kvstrata_test_headers PRIVATE ${_test_options})
  target_precompile_headers(kvstrata_test_headers PRIVATE ${_headers} <tests/support/catch.hpp>)
endif()

# kvstrata_layer(NAME n SOURCES ... [LAYERS ...] [LIBRARIES ...])
# A layer is a static archive of position-independent, hidden objects: unit tests link the layers they name, and
# the final libraries are made from all layers' objects (capi/CMakeLists.txt).
function(kvstrata_layer)
  cmake_parse_arguments(arg "" "NAME" "SOURCES;LAYERS;LIBRARIES" ${ARGN})
  set(target kvstrata_layer_${arg_NAME})
  add_library(${target} STATIC ${arg_SOURCES})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
    C_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${target} PRIVATE kvstrata_flags PUBLIC ${arg_LIBRARIES})
  if(KVSTRATA_PRECOMPILE_HEADERS AND NOT arg_NAME STREQUAL "kernels")  # which has other flags, and none of the headers
    target_precompile_headers(${target} REUSE_FROM kvstrata_layer_headers)
    target_compile_options(${target} PRIVATE ${_precompiled_options})
  endif()
  foreach(layer IN LISTS arg_LAYERS)
    target_link_libraries(${target} PUBLIC kvstrata_layer_${layer})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY KVSTRATA_LAYERS ${target})
  set_property(GLOBAL APPEND PROPERTY KVSTRATA_LIBRARIES ${arg_LIBRARIES})
endfunction()

# kvstrata_test(NAME n SOURCES ... [LAYERS ...] [LIBRARIES ...] [LABELS ...])
# A Catch2 program. LAYERS names the internal layers it tests; a test of the public API gives LIBRARIES kvstrata.
# It runs in the source folder. LABELS tsan: it has threads and also runs under ThreadSanitizer, where only the
# target kvstrata_tsan_tests is built and `ctest -L tsan` run.
if(KVSTRATA_BUILD_TESTS)
  add_custom_target(kvstrata_tsan_tests)
endif()
function(kvstrata_test)
  cmake_parse_arguments(arg "" "NAME" "SOURCES;LAYERS;LIBRARIES;LABELS" ${ARGN})
  add_executable(${arg_NAME} ${arg_SOURCES})
  target_link_libraries(${arg_NAME} PRIVATE kvstrata_flags kvstrata_test_main ${arg_LIBRARIES})
  foreach(layer IN LISTS arg_LAYERS)
    target_link_libraries(${arg_NAME} PRIVATE kvstrata_layer_${layer})
  endforeach()
  if(NOT KVSTRATA_SANITIZE OR NOT arg_LABELS MATCHES "model|golden")
    target_compile_options(${arg_NAME} PRIVATE ${_test_options} ${_precompiled_options})
    target_precompile_headers(${arg_NAME} REUSE_FROM kvstrata_test_headers)
  endif()
  add_test(NAME ${arg_NAME} COMMAND ${arg_NAME} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # The timeout only ends a hang; no test may be judged by the clock.
  set_tests_properties(${arg_NAME} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 600)
  if("tsan" IN_LIST arg_LABELS)
    add_dependencies(kvstrata_tsan_tests ${arg_NAME})
  endif()
endfunction()
