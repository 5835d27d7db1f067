# SPDX-License-Identifier: Apache-2.0
# find_package(adamant) gives adamant::adamant, and adamant::c where it was installed, too. With COMPONENTS c only that,
# which a project in C can have without what the headers need.
if(NOT ("${adamant_FIND_COMPONENTS}" STREQUAL "c" AND adamant_FIND_REQUIRED_c))
    include(${CMAKE_CURRENT_LIST_DIR}/adamant-dependencies.cmake)
    if(adamant_missing) # for find_package() to say, or to keep quiet about
        set(adamant_FOUND FALSE)
        set(adamant_NOT_FOUND_MESSAGE "${adamant_missing}")
        return()
    endif()
    include(${CMAKE_CURRENT_LIST_DIR}/adamant-targets.cmake)
endif()
include(${CMAKE_CURRENT_LIST_DIR}/adamant-c-targets.cmake OPTIONAL RESULT_VARIABLE adamant_c_FOUND)
foreach(component IN LISTS adamant_FIND_COMPONENTS)
    if(NOT component STREQUAL "c")
        set(adamant_FOUND FALSE)
        set(adamant_NOT_FOUND_MESSAGE "adamant has no component '${component}'; there is 'c'")
    elseif(NOT adamant_c_FOUND AND adamant_FIND_REQUIRED_c)
        set(adamant_FOUND FALSE)
        set(adamant_NOT_FOUND_MESSAGE "this adamant was installed without its C library; build it with ADAMANT_BUILD_C")
    endif()
endforeach()
