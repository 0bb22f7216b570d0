# Debian packages, by CPack: libkvstrata0 (the number is the ABI's) to run, libkvstrata-dev to build with. What they
# depend on is read out of the library (dpkg-shlibdeps). `make package` makes those of a release.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kvstrata)
set(CPACK_PACKAGE_VENDOR kvstrata)
# Who gives the packages to others names himself: cpack -D CPACK_DEBIAN_PACKAGE_MAINTAINER="Name <address>".
set(CPACK_PACKAGE_CONTACT "kvstrata maintainers <maintainers@kvstrata.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime development)
if(kvstrata_CUDA)
  list(APPEND CPACK_COMPONENTS_ALL cuda cuda_development)
endif()
set(CPACK_COMPONENT_DEVELOPMENT_DEPENDS runtime)
set(CPACK_COMPONENT_CUDA_DEVELOPMENT_DEPENDS cuda development)
# Policy: folders 0755, whatever the umask of who builds.
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
  WORLD_READ WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(_summary "persistent, exact prefix cache for large language model engines")
set(_text "kvstrata keeps the computed prompt prefixes of a large language model and gives
them back exactly: on disk, across requests, sessions and restarts. An engine
links it into its own process. This package holds")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libkvstrata${kvstrata_ABI_VERSION})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/cmake/debian/postinst
  ${PROJECT_SOURCE_DIR}/cmake/debian/postrm)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
# While the ABI number is 0 symbols may change with any release: a program needs the one that it was built with.
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY "=")
if(kvstrata_ABI_VERSION GREATER 0)
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
endif()
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "${_summary}
${_text} the shared library.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libkvstrata-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
# Who links the static library links these from the system.
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "libabsl-dev, libzstd-dev")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "${_summary} (development files)
${_text} the headers for C
and C++, the static library, and what CMake and pkg-config need to find them.")

set(CPACK_DEBIAN_CUDA_PACKAGE_NAME libkvstrata-cuda${kvstrata_ABI_VERSION})
set(CPACK_DEBIAN_CUDA_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_CUDA_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_CUDA_PACKAGE_CONTROL_EXTRA ${CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA})
set(CPACK_COMPONENT_CUDA_DESCRIPTION "${_summary} (CUDA)
${_text} its kernels for
NVIDIA GPUs. It loads where no driver is, and says so.")
set(CPACK_DEBIAN_CUDA_DEVELOPMENT_PACKAGE_NAME libkvstrata-cuda-dev)
set(CPACK_DEBIAN_CUDA_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_CUDA_DEVELOPMENT_DESCRIPTION "${_summary} (CUDA, development files)
${_text} the header for
the kernels on NVIDIA GPUs, and what CMake needs to find them.")

# Policy wants the licence with each package; an installation by hand has no use for it there.
foreach(_component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${_component} _name)
  install(FILES cmake/debian/copyright DESTINATION share/doc/${CPACK_DEBIAN_${_name}_PACKAGE_NAME}
    COMPONENT ${_component} EXCLUDE_FROM_ALL)
endforeach()
include(CPack)
