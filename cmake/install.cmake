# What is installed: headers, the libraries, a CMake package and a pkg-config file. Two components: `runtime` is what a
# program needs that was linked, `development` all else. libkvstrata_cuda has two of its own, `cuda` and
# `cuda_development`.
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/kvstrata)

install(DIRECTORY include/kvstrata DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp" PATTERN cuda.h EXCLUDE)

# Two export sets: who wants the shared library need not have its dependencies' packages.
foreach(kind IN ITEMS shared static)
  set(target kvstrata)
  if(kind STREQUAL static)
    set(target kvstrata_static)
  endif()
  install(TARGETS ${target} EXPORT kvstrata-${kind}-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
  install(EXPORT kvstrata-${kind}-targets NAMESPACE kvstrata:: DESTINATION ${package_folder} COMPONENT development)
endforeach()

if(kvstrata_CUDA)
  install(FILES include/kvstrata/cuda.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvstrata COMPONENT cuda_development)
  install(TARGETS kvstrata_cuda EXPORT kvstrata-cuda-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cuda NAMELINK_COMPONENT cuda_development)
  install(EXPORT kvstrata-cuda-targets NAMESPACE kvstrata:: DESTINATION ${package_folder} COMPONENT cuda_development)
endif()

# Before 1.0 a minor release may change the API.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/kvstrata-config-version.cmake
  COMPATIBILITY SameMinorVersion)

# What a static link needs besides libkvstrata.a, told by the dependencies' own pkg-config files.
set(kvstrata_STATIC_PACKAGES Threads zstd)
set(libraries "")
if(NOT KVSTRATA_BUNDLED_ABSEIL)
  list(PREPEND kvstrata_STATIC_PACKAGES absl)
  get_property(libraries GLOBAL PROPERTY KVSTRATA_LIBRARIES)
  list(FILTER libraries INCLUDE REGEX "^absl::")
  list(TRANSFORM libraries REPLACE "^absl::" "absl_")
  list(REMOVE_DUPLICATES libraries)
endif()
configure_package_config_file(cmake/kvstrata-config.cmake.in ${PROJECT_BINARY_DIR}/package/kvstrata-config.cmake
  INSTALL_DESTINATION ${package_folder} NO_SET_AND_CHECK_MACRO)
pkg_check_modules(_private QUIET ${libraries} libzstd)
if(NOT _private_FOUND)
  message(STATUS "kvstrata.pc: no pkg-config files of Abseil found; 'pkg-config --static kvstrata' will not name it")
endif()
list(JOIN _private_LDFLAGS " " private_libraries)
# Absolute install folders, as some distributions use, must not be put behind the prefix.
foreach(folder IN ITEMS LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${folder}}")
    set(pc_${folder} "${CMAKE_INSTALL_${folder}}")
  else()
    set(pc_${folder} "\${prefix}/${CMAKE_INSTALL_${folder}}")
  endif()
endforeach()
# The prefix is told from where the file lies, so that an installation may be moved.
set(pc_PREFIX "${CMAKE_INSTALL_PREFIX}")
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH way_up /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  string(REGEX REPLACE "/$" "" way_up "${way_up}")
  set(pc_PREFIX "\${pcfiledir}/${way_up}")
endif()
configure_file(cmake/kvstrata.pc.in ${PROJECT_BINARY_DIR}/package/kvstrata.pc @ONLY)

install(FILES ${PROJECT_BINARY_DIR}/package/kvstrata-config.cmake
  ${PROJECT_BINARY_DIR}/package/kvstrata-config-version.cmake DESTINATION ${package_folder}
  COMPONENT development)
install(FILES ${PROJECT_BINARY_DIR}/package/kvstrata.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT development)
