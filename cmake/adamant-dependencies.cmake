# SPDX-License-Identifier: Apache-2.0
# What adamant::adamant links to; used by the build and by the installed package alike. What is not there is named in
# adamant_missing.
set(adamant_missing "")

# Looked for only where the target is missing: FindOpenMP sets its properties anew, and what the project has added to
# them would be lost.
get_property(adamant_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
if(NOT TARGET OpenMP::OpenMP_CXX AND CXX IN_LIST adamant_languages)
    find_package(OpenMP QUIET COMPONENTS CXX)
endif()
if(NOT CXX IN_LIST adamant_languages)
    string(CONCAT adamant_missing "adamant's headers need C++, which this project does not enable. Add CXX to the LANGUAGES of "
                        "project(). A project in C alone takes find_package(adamant COMPONENTS c) and adamant::c.")
elseif(NOT TARGET OpenMP::OpenMP_CXX)
    string(CONCAT adamant_missing "adamant needs OpenMP for C++ and found none. On Debian and Ubuntu it comes with g++, and for "
                        "Clang with libomp-dev.")
endif()

# xsimd is for Arm. It is headers only, but its package lies in a folder of one architecture, which a cross build does
# not search: then the header itself is looked for.
if(adamant_missing)
    return()
endif()

if(NOT TARGET adamant::xsimd AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    add_library(adamant::xsimd INTERFACE IMPORTED)
elseif(NOT TARGET adamant::xsimd)
    find_package(xsimd CONFIG QUIET)
    if(TARGET xsimd)
        get_target_property(ADAMANT_XSIMD_INCLUDE_DIR xsimd INTERFACE_INCLUDE_DIRECTORIES)
    else()
        find_path(ADAMANT_XSIMD_INCLUDE_DIR xsimd/xsimd.hpp)
    endif()
    if(NOT ADAMANT_XSIMD_INCLUDE_DIR)
        string(CONCAT adamant_missing "adamant needs xsimd 8.1 or newer on Arm and found none. On Debian and Ubuntu: "
                            "apt-get install libxsimd-dev. Elsewhere set CMAKE_PREFIX_PATH or xsimd_DIR.")
    else()
        add_library(adamant::xsimd INTERFACE IMPORTED)
        target_include_directories(adamant::xsimd SYSTEM INTERFACE ${ADAMANT_XSIMD_INCLUDE_DIR})
    endif()
endif()

# hwloc has no CMake package. Without it threads and memory are not bound to anything, and asking for it is an error.
option(ADAMANT_HWLOC "Bind threads and memory with hwloc" ON) # an installed package has set it before
if(NOT TARGET adamant::hwloc)
    if(ADAMANT_HWLOC)
        find_path(ADAMANT_HWLOC_INCLUDE_DIR hwloc.h)
        find_library(ADAMANT_HWLOC_LIBRARY hwloc)
        if(NOT ADAMANT_HWLOC_INCLUDE_DIR OR NOT ADAMANT_HWLOC_LIBRARY)
            string(CONCAT adamant_missing "adamant needs hwloc 2.5 or newer and found none. On Debian and Ubuntu: apt-get install "
                                "libhwloc-dev. Elsewhere set CMAKE_PREFIX_PATH, or ADAMANT_HWLOC=OFF to do without binding.")
        else()
            add_library(adamant::hwloc INTERFACE IMPORTED)
            target_include_directories(adamant::hwloc SYSTEM INTERFACE ${ADAMANT_HWLOC_INCLUDE_DIR})
            target_link_libraries(adamant::hwloc INTERFACE ${ADAMANT_HWLOC_LIBRARY})
        endif()
    else()
        add_library(adamant::hwloc INTERFACE IMPORTED)
        target_compile_definitions(adamant::hwloc INTERFACE ADAMANT_NO_HWLOC)
    endif()
endif()
