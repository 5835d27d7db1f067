# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Absolute folders below the prefix, as some distributions give them, are relative ones: the package can be moved.
foreach(dir INCLUDEDIR LIBDIR DATAROOTDIR)
    if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
        cmake_path(IS_PREFIX CMAKE_INSTALL_PREFIX "${CMAKE_INSTALL_${dir}}" NORMALIZE below)
        if(NOT below)
            message(FATAL_ERROR "cannot install to CMAKE_INSTALL_${dir}, ${CMAKE_INSTALL_${dir}}: it is not below "
                                "CMAKE_INSTALL_PREFIX, ${CMAKE_INSTALL_PREFIX}. Set it to a relative path, or set "
                                "ADAMANT_INSTALL=OFF.")
        endif()
        file(RELATIVE_PATH CMAKE_INSTALL_${dir} ${CMAKE_INSTALL_PREFIX} "${CMAKE_INSTALL_${dir}}")
        set(CMAKE_INSTALL_FULL_${dir} ${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_${dir}})
    endif()
endforeach()

# Headers only, so nothing depends on the architecture: everything goes under share, where any build looks.
set(package_dir ${CMAKE_INSTALL_DATAROOTDIR}/cmake/adamant)

install(TARGETS adamant EXPORT adamant-targets FILE_SET HEADERS FILE_SET opt_in FILE_SET bodies)
install(EXPORT adamant-targets NAMESPACE adamant:: DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/adamant-config-version.cmake
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
# The options of this installation, unless the project that finds it sets them.
file(WRITE ${PROJECT_BINARY_DIR}/adamant-options.cmake
     "option(ADAMANT_HWLOC \"Bind threads and memory with hwloc\" ${ADAMANT_HWLOC})\n")
install(FILES cmake/adamant-config.cmake cmake/adamant-dependencies.cmake cmake/adamant-compiled.cmake
              ${PROJECT_BINARY_DIR}/adamant-config-version.cmake ${PROJECT_BINARY_DIR}/adamant-options.cmake
        DESTINATION ${package_dir})

# xsimd's file names its include directory; where it has none, neither do we.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    pkg_check_modules(ADAMANT_XSIMD_PC QUIET xsimd)
endif()
set(pc_requires "")
set(pc_cflags "-fopenmp")
if(ADAMANT_XSIMD_PC_FOUND)
    list(APPEND pc_requires xsimd)
endif()
if(ADAMANT_HWLOC)
    list(APPEND pc_requires hwloc)
else()
    string(APPEND pc_cflags " -DADAMANT_NO_HWLOC")
endif()
list(JOIN pc_requires ", " pc_requires)
file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_FULL_DATAROOTDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/adamant.pc.in adamant.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/adamant.pc DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(ADAMANT_BUILD_TOOLS)
    install(TARGETS adamant_cli)
    install(FILES tools/adamant/adamant.bash DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions
            RENAME adamant) # where bash looks for the completion of a program in the same prefix
endif()

# The C library depends on the architecture, and is found without what the headers need.
if(ADAMANT_BUILD_C)
    install(TARGETS adamant_c EXPORT adamant-c-targets FILE_SET HEADERS)
    install(EXPORT adamant-c-targets NAMESPACE adamant:: DESTINATION ${package_dir})
    file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
    configure_file(cmake/adamant_c.pc.in adamant_c.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/adamant_c.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
