# SPDX-License-Identifier: Apache-2.0
# A header-only program that never calls place() compiles nothing of a device's side: neither its pieces nor its passes.
# What such a program calls is behind a base class, of which it makes no object.
execute_process(COMMAND ${CXX} -std=c++20 -O1 -fopenmp -I${SOURCE}/include -c ${SOURCE}/examples/engine.cpp
                        -o ${SCRATCH}/no_device.o
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${NM} -C ${SCRATCH}/no_device.o OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
if(NOT symbols MATCHES "detail::cpu_backend::")
    message(FATAL_ERROR "the CPU's side was not found: this test looks in the wrong place")
endif()
string(REPLACE "\n" ";" symbols "${symbols}")
set(of_device "")
foreach(symbol IN LISTS symbols)
    if(symbol MATCHES " [^ ]*(device_pieces|device_partition|device_backend|device_part|emulated_|move_shards)[^ ]*::"
       OR symbol MATCHES "(vtable|typeinfo) for .*(device_backend|device_partition)")
        string(APPEND of_device "${symbol}\n")
    endif()
endforeach()
if(NOT of_device STREQUAL "")
    message(FATAL_ERROR "compiled for a device that the program has not:\n${of_device}")
endif()
