# SPDX-License-Identifier: Apache-2.0
# find_package(adamant) defines adamant::adamant, adamant::compiled, and adamant::c if it was installed. COMPONENTS c defines
# only the last, which a project in C can use without the packages of the headers.
cmake_policy(VERSION 3.25) # find_package() restores the project's policies
if(NOT ("${adamant_FIND_COMPONENTS}" STREQUAL "c" AND adamant_FIND_REQUIRED_c))
    include(${CMAKE_CURRENT_LIST_DIR}/adamant-options.cmake)
    include(${CMAKE_CURRENT_LIST_DIR}/adamant-dependencies.cmake)
    if(adamant_missing) # for find_package() to say, or to keep quiet about
        set(adamant_FOUND FALSE)
        set(adamant_NOT_FOUND_MESSAGE "${adamant_missing}")
        return()
    endif()
    include(${CMAKE_CURRENT_LIST_DIR}/adamant-targets.cmake)
    if(NOT TARGET adamant::compiled)
        get_target_property(ADAMANT_INCLUDE_DIR adamant::adamant INTERFACE_INCLUDE_DIRECTORIES)
        # CMake wraps the folder of each file set, but the sources are read when a project is configured.
        list(GET ADAMANT_INCLUDE_DIR 0 ADAMANT_INCLUDE_DIR)
        string(REGEX REPLACE "^[$]<BUILD_INTERFACE:(.*)>$" "\\1" ADAMANT_INCLUDE_DIR "${ADAMANT_INCLUDE_DIR}")
        include(${CMAKE_CURRENT_LIST_DIR}/adamant-compiled.cmake)
    endif()
endif()
include(${CMAKE_CURRENT_LIST_DIR}/adamant-c-targets.cmake OPTIONAL RESULT_VARIABLE adamant_c_FOUND)
foreach(component IN LISTS adamant_FIND_COMPONENTS)
    if(NOT adamant_FIND_REQUIRED_${component})
        continue()
    elseif(NOT component STREQUAL "c")
        set(adamant_FOUND FALSE)
        set(adamant_NOT_FOUND_MESSAGE "adamant has no component '${component}'; there is 'c'")
    elseif(NOT adamant_c_FOUND)
        set(adamant_FOUND FALSE)
        set(adamant_NOT_FOUND_MESSAGE "this adamant was installed without its C library; build it with ADAMANT_BUILD_C")
    endif()
endforeach()
