# SPDX-License-Identifier: Apache-2.0
# What adamant::adamant links to; used by the build and by the installed package alike.

find_package(OpenMP REQUIRED COMPONENTS CXX)

# xsimd is headers only, but its package lies in a folder of one architecture, which a cross build does not search:
# then the header itself is looked for.
if(NOT TARGET adamant::xsimd)
    find_package(xsimd CONFIG QUIET)
    if(TARGET xsimd)
        get_target_property(ADAMANT_XSIMD_INCLUDE_DIR xsimd INTERFACE_INCLUDE_DIRECTORIES)
    else()
        find_path(ADAMANT_XSIMD_INCLUDE_DIR xsimd/xsimd.hpp)
    endif()
    if(NOT ADAMANT_XSIMD_INCLUDE_DIR)
        message(FATAL_ERROR "adamant needs xsimd 8.1 or newer and found none. On Debian and Ubuntu: "
                            "apt-get install libxsimd-dev. Elsewhere set CMAKE_PREFIX_PATH or xsimd_DIR.")
    endif()
    add_library(adamant::xsimd INTERFACE IMPORTED)
    target_include_directories(adamant::xsimd SYSTEM INTERFACE ${ADAMANT_XSIMD_INCLUDE_DIR})
endif()

# hwloc has no CMake package. Without it threads and memory are not bound to anything, and asking for it is an error.
option(ADAMANT_HWLOC "Bind threads and memory with hwloc" ON)
if(NOT TARGET adamant::hwloc)
    add_library(adamant::hwloc INTERFACE IMPORTED)
    if(ADAMANT_HWLOC)
        find_path(ADAMANT_HWLOC_INCLUDE_DIR hwloc.h)
        find_library(ADAMANT_HWLOC_LIBRARY hwloc)
        if(NOT ADAMANT_HWLOC_INCLUDE_DIR OR NOT ADAMANT_HWLOC_LIBRARY)
            message(FATAL_ERROR "adamant needs hwloc 2.5 or newer and found none. On Debian and Ubuntu: apt-get install "
                                "libhwloc-dev. Elsewhere set CMAKE_PREFIX_PATH, or ADAMANT_HWLOC=OFF to do without binding.")
        endif()
        target_include_directories(adamant::hwloc SYSTEM INTERFACE ${ADAMANT_HWLOC_INCLUDE_DIR})
        target_link_libraries(adamant::hwloc INTERFACE ${ADAMANT_HWLOC_LIBRARY})
    else()
        target_compile_definitions(adamant::hwloc INTERFACE ADAMANT_NO_HWLOC)
    endif()
endif()
