# SPDX-License-Identifier: Apache-2.0
# How our own programs are compiled. Nothing here reaches a program that uses the library.

set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release)
endif()

option(ADAMANT_UNITY_BUILD "Compile the files of our own programs in groups: less time for all, more after a change of one" OFF)
set(ADAMANT_SANITIZE "" CACHE STRING "Sanitizers for our own programs: address,undefined or thread")

add_library(adamant_own_flags INTERFACE)
target_compile_options(adamant_own_flags INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor -Wold-style-cast
    $<$<BOOL:${ADAMANT_WARNINGS_AS_ERRORS}>:-Werror>)
if(ADAMANT_UNITY_BUILD) # or GCC collects garbage several times for a group of files, which takes 8% of its time
    target_compile_options(adamant_own_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>)
endif()
set(adamant_less_inlining "")
if(ADAMANT_SANITIZE)
    target_compile_options(adamant_own_flags INTERFACE
        -fsanitize=${ADAMANT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
        -fno-sanitize=null,object-size) # the address sanitizer finds those too, and compiles in two thirds of the time
    target_link_options(adamant_own_flags INTERFACE -fsanitize=${ADAMANT_SANITIZE})
    if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
        # Instrumented code is large. With less inlining and the instruction selection of -O0 it compiles in two thirds of the
        # time and runs as fast. Kernels need the inlining.
        target_compile_options(adamant_own_flags INTERFACE "SHELL:-mllvm -fast-isel")
        set(adamant_less_inlining -mllvm -inline-threshold=15)
    endif()
    if(CMAKE_CXX_COMPILER_ID MATCHES Clang AND NOT ADAMANT_SANITIZE STREQUAL "thread")
        # Code for a check that is off when programs run. It takes 5% of the compile time.
        target_compile_options(adamant_own_flags INTERFACE -fsanitize-address-use-after-return=never)
    endif()
endif()

# Puts files of a program into a group that ADAMANT_UNITY_BUILD compiles as one file: headers are half of a file's time, and
# most of it with JSON. Names that the files of a group define for themselves must differ.
function(adamant_compile_together program group)
    set_target_properties(${program} PROPERTIES UNITY_BUILD ${ADAMANT_UNITY_BUILD} UNITY_BUILD_MODE GROUP)
    set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${group})
endfunction()

# With the library compiled once; adamant::adamant for what the inside of the library needs, which tests look into.
function(adamant_own_program name)
    add_executable(${name} ${ARGN})
    target_link_libraries(${name} PRIVATE adamant_compiled adamant::adamant adamant_own_flags)
endfunction()
target_link_libraries(adamant_compiled PRIVATE adamant_own_flags)
if(ADAMANT_SANITIZE) # kernels are most of the compiling, and those of some formats have every line of them
    foreach(source IN LISTS adamant_sources)
        if(source MATCHES "formats_(bfloat16|float16|float32_to_float16)\\.cpp")
            set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -fno-sanitize=all)
        elseif(NOT ADAMANT_SANITIZE STREQUAL "thread")
            set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -fno-sanitize=pointer-overflow)
        endif()
        if(source MATCHES "library\\.cpp")
            set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS ${adamant_less_inlining})
        endif()
    endforeach()
elseif(ADAMANT_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # It has everything but the kernels, and compiles in three quarters of the time.
    set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/adamant_sources/library.cpp PROPERTIES COMPILE_OPTIONS -Og)
endif()
