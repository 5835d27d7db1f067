# SPDX-License-Identifier: Apache-2.0
# What a project meets that has set up OpenMP itself, that has no C++, or that finds an installed package. Nothing is built.
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

# A package is found from a project with old policies. It leaves behind no variable without a prefix, ignores optional
# components that it does not have, and has the options of its installation unless the project sets them.
set(prefix ${SCRATCH}/prefix)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH}/no_hwloc -DCMAKE_CXX_COMPILER=${CXX} -DADAMANT_HWLOC=OFF
                        -DADAMANT_BUILD_C=OFF -DADAMANT_BUILD_EXAMPLES=OFF -DADAMANT_BUILD_TESTS=OFF -DCMAKE_INSTALL_PREFIX=${prefix}
                        -DCMAKE_INSTALL_INCLUDEDIR=${prefix}/include/theirs -DCMAKE_INSTALL_DATAROOTDIR=${prefix}/share/theirs
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${SCRATCH}/no_hwloc OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
foreach(hwloc default ON)
    file(WRITE ${SCRATCH}/${hwloc}/CMakeLists.txt [[
cmake_minimum_required(VERSION 3.5)
project(consumer LANGUAGES CXX)
if(HWLOC STREQUAL "ON")
    set(ADAMANT_HWLOC ON)
endif()
get_cmake_property(before VARIABLES)
find_package(adamant REQUIRED OPTIONAL_COMPONENTS gpu)
get_cmake_property(left VARIABLES)
list(REMOVE_ITEM left before ${before})
list(FILTER left EXCLUDE REGEX "^_?(adamant|ADAMANT|OpenMP|OPENMP|CMAKE|FIND_PACKAGE|CMP)|^PACKAGE_PREFIX_DIR$")
if(left)
    message(FATAL_ERROR "find_package(adamant) leaves behind ${left}")
endif()
get_target_property(definitions adamant::hwloc INTERFACE_COMPILE_DEFINITIONS)
if(HWLOC STREQUAL "ON" AND definitions OR HWLOC STREQUAL "default" AND NOT definitions STREQUAL "ADAMANT_NO_HWLOC")
    message(FATAL_ERROR "the definitions of adamant::hwloc are ${definitions}")
endif()
]])
    execute_process(COMMAND ${CMAKE_COMMAND} -S ${SCRATCH}/${hwloc} -B ${SCRATCH}/${hwloc}/build -DCMAKE_CXX_COMPILER=${CXX}
                            -Dadamant_DIR=${prefix}/share/theirs/cmake/adamant -DHWLOC=${hwloc} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
file(STRINGS ${prefix}/share/theirs/pkgconfig/adamant.pc paths REGEX "^(prefix|includedir)=")
if(NOT paths STREQUAL "prefix=\${pcfiledir}/../../../;includedir=\${prefix}/include/theirs" OR
   NOT EXISTS ${prefix}/include/theirs/adamant/adamant.hpp)
    message(FATAL_ERROR "adamant.pc has ${paths}")
endif()
