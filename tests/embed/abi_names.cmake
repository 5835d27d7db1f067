# SPDX-License-Identifier: Apache-2.0
# Flags that allow other instructions have other ABI namespaces: the linker keeps one copy of an inline function, and a
# CPU without those instructions must not get it.
cmake_minimum_required(VERSION 3.25)
if(PROCESSOR MATCHES "aarch64")
    set(flags -march=armv8-a -march=armv8.1-a -march=armv8-a+sve -march=armv8-a+sve2
        "-march=armv8-a+sve -msve-vector-bits=256" "-march=armv8-a+sve -msve-vector-bits=512")
else()
    set(flags -march=x86-64 -march=nehalem -march=sandybridge -mavx2 "-mavx2 -mfma" -march=haswell -march=skylake-avx512
        -march=icelake-server -march=sapphirerapids)
endif()
set(names "")
foreach(each IN LISTS flags)
    separate_arguments(options UNIX_COMMAND "${each}")
    file(WRITE ${SCRATCH}/abi_names.cpp "#include <adamant/detail/core/abi.hpp>\nnamespace_is ADAMANT_FLAGS_ABI\n")
    execute_process(COMMAND ${CXX} -std=c++20 ${options} -I${SOURCE}/include -E -P ${SCRATCH}/abi_names.cpp
                    OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
    if(NOT text MATCHES "namespace_is (v0_[a-z0-9_]+)")
        message(FATAL_ERROR "no namespace with ${each}:\n${text}")
    endif()
    if(CMAKE_MATCH_1 IN_LIST names)
        message(FATAL_ERROR "${CMAKE_MATCH_1} is the namespace of ${each}, and of other flags")
    endif()
    list(APPEND names ${CMAKE_MATCH_1})
endforeach()
message(STATUS "${names}")
