# Abseil compiled here from a source tree (KVSTRATA_BUNDLED_ABSEIL; cmake/fetch-abseil.sh gets the distribution's), for
# a library that is to run where no Abseil is installed, or another. Only what is linked is compiled: into both
# libraries alike, hidden, position independent, and in an inline namespace of its own, so that a program may have its
# own Abseil beside a static kvstrata. zstd stays the system's: its ABI is stable and it is everywhere, while the
# distribution's archive of it is not position independent.

# Abseil's switches are a header. Ours comes before its own.
file(READ ${KVSTRATA_BUNDLED_ABSEIL}/absl/base/options.h _options)
string(REGEX REPLACE "#define ABSL_OPTION_INLINE_NAMESPACE_NAME [^\n]+"
  "#define ABSL_OPTION_INLINE_NAMESPACE_NAME kvstrata_abseil" _options "${_options}")
string(REGEX REPLACE "#define ABSL_OPTION_USE_INLINE_NAMESPACE [^\n]+"
  "#define ABSL_OPTION_USE_INLINE_NAMESPACE 1" _options "${_options}")
file(CONFIGURE OUTPUT abseil-options/absl/base/options.h CONTENT "${_options}" @ONLY)
include_directories(BEFORE ${PROJECT_BINARY_DIR}/abseil-options)

function(kvstrata_add_abseil)
  set(ABSL_PROPAGATE_CXX_STD ON)
  set(BUILD_TESTING OFF)
  set(BUILD_SHARED_LIBS OFF)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  set(CMAKE_CXX_VISIBILITY_PRESET hidden)
  set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
  # What nobody calls is left out of the shared library (capi/CMakeLists.txt).
  add_compile_options(-ffunction-sections -fdata-sections)
  add_subdirectory(${KVSTRATA_BUNDLED_ABSEIL} ${PROJECT_BINARY_DIR}/abseil EXCLUDE_FROM_ALL)
endfunction()
kvstrata_add_abseil()

# kvstrata_abseil_parts(LIBRARIES OBJECTS_OUT OTHERS_OUT): the objects of all Abseil libraries that LIBRARIES need, and
# what is left to link.
function(kvstrata_abseil_parts libraries objects_out others_out)
  set(objects "")
  set(others "")
  set(seen "")
  while(libraries)
    list(POP_FRONT libraries library)
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" library "${library}")
    if(NOT library OR library IN_LIST seen)
      continue()
    endif()
    list(APPEND seen "${library}")
    if(NOT library MATCHES "^absl(::|_)")
      list(APPEND others "${library}")
      continue()
    endif()
    get_target_property(target ${library} ALIASED_TARGET)
    if(NOT target)
      set(target ${library})
    endif()
    get_target_property(needs ${target} INTERFACE_LINK_LIBRARIES)
    if(needs)
      list(APPEND libraries ${needs})
    endif()
    get_target_property(kind ${target} TYPE)
    if(kind STREQUAL "STATIC_LIBRARY" AND NOT "$<TARGET_OBJECTS:${target}>" IN_LIST objects)
      list(APPEND objects $<TARGET_OBJECTS:${target}>)
    endif()
  endwhile()
  set(${objects_out} ${objects} PARENT_SCOPE)
  set(${others_out} ${others} PARENT_SCOPE)
endfunction()

# Its headers are not ours to warn about.
function(kvstrata_quiet_abseil folder)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(includes ${target} INTERFACE_INCLUDE_DIRECTORIES)
    if(includes)
      set_target_properties(${target} PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${includes}")
    endif()
  endforeach()
  get_property(folders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(below IN LISTS folders)
    kvstrata_quiet_abseil(${below})
  endforeach()
endfunction()
kvstrata_quiet_abseil(${KVSTRATA_BUNDLED_ABSEIL})
