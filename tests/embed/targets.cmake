# SPDX-License-Identifier: Apache-2.0
# What a project meets that has set up OpenMP itself, or that has no C++. Nothing is built.
file(REMOVE_RECURSE ${SCRATCH})

# A consumer's definitions on OpenMP::OpenMP_CXX are still there afterwards.
file(WRITE ${SCRATCH}/openmp/CMakeLists.txt [[
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(OpenMP REQUIRED COMPONENTS CXX)
set_property(TARGET OpenMP::OpenMP_CXX APPEND PROPERTY INTERFACE_COMPILE_OPTIONS -DTHEIRS)
add_subdirectory(${ADAMANT_SOURCE} adamant)
get_target_property(options OpenMP::OpenMP_CXX INTERFACE_COMPILE_OPTIONS)
if(NOT "${options}" MATCHES "-DTHEIRS")
    message(FATAL_ERROR "the options of OpenMP::OpenMP_CXX are now ${options}")
endif()
]])
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SCRATCH}/openmp -B ${SCRATCH}/openmp/build -DCMAKE_CXX_COMPILER=${CXX}
                        -DADAMANT_SOURCE=${SOURCE} COMMAND_ERROR_IS_FATAL ANY)

# A project in C alone is told so.
file(WRITE ${SCRATCH}/c/CMakeLists.txt [[
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C)
include(${ADAMANT_SOURCE}/cmake/adamant-dependencies.cmake)
message(FATAL_ERROR "${adamant_missing}")
]])
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SCRATCH}/c -B ${SCRATCH}/c/build -DADAMANT_SOURCE=${SOURCE} RESULT_VARIABLE status
                ERROR_VARIABLE err)
string(REGEX REPLACE "[ \n]+" " " err "${err}")
if(status EQUAL 0 OR NOT err MATCHES "need C\\+\\+, which this project does not enable. Add CXX" OR err MATCHES "found none")
    message(FATAL_ERROR "a project in C is told: ${err}")
endif()
