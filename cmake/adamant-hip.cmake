# SPDX-License-Identifier: Apache-2.0
# Whether our own programs for AMD's GPUs are built: looks for hipcc. CMake's language HIP is not used, because CMake 3.25 does
# not find Debian's HIP. A program that uses the backend needs nothing of this: it includes adamant/cuda.cuh in a .hip file.
adamant_gpu_option(ADAMANT_HIP hipcc
                   "Build our own programs for AMD's GPUs with hipcc: AUTO (tests, where there is one), ON or OFF")
set(adamant_hip FALSE)
if(NOT ADAMANT_HIP_wanted)
    return()
endif()
find_program(ADAMANT_HIPCC hipcc HINTS ENV ROCM_PATH PATHS /opt/rocm PATH_SUFFIXES bin)
mark_as_advanced(ADAMANT_HIPCC)
if(NOT ADAMANT_HIPCC)
    if(ADAMANT_HIP STREQUAL "ON")
        message(FATAL_ERROR "ADAMANT_HIP is ON, but there is no hipcc: CMake looked along PATH, in ROCM_PATH and in /opt/rocm. "
                            "Install ROCm (Debian and Ubuntu: hipcc libamdhip64-dev), and set ADAMANT_HIPCC=/path/to/hipcc if "
                            "it lies elsewhere. Or set ADAMANT_HIP=OFF: nothing else needs it.")
    endif()
    return()
endif()

# Left to itself: those of MI250 and MI300A for which this hipcc has a compiler, headers and device libraries.
if(NOT DEFINED CMAKE_HIP_ARCHITECTURES AND NOT DEFINED ADAMANT_HIP_ARCHITECTURES)
    set(found "")
    set(source ${CMAKE_CURRENT_BINARY_DIR}/adamant_sources/has_architecture.hip)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include <hip/hip_runtime.h>\n\n__global__ void kernel() {}\n" @ONLY)
    foreach(architecture gfx90a gfx942)
        execute_process(COMMAND ${ADAMANT_HIPCC} --offload-arch=${architecture} -c ${source} -o ${source}.o
                        RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
        if(status EQUAL 0)
            list(APPEND found ${architecture})
        endif()
    endforeach()
    if(found) # otherwise looks again
        set(ADAMANT_HIP_ARCHITECTURES "${found}" CACHE INTERNAL "")
    endif()
endif()
if(DEFINED CMAKE_HIP_ARCHITECTURES)
    set(ADAMANT_HIP_ARCHITECTURES "${CMAKE_HIP_ARCHITECTURES}" CACHE INTERNAL "")
endif()
if(NOT ADAMANT_HIP_ARCHITECTURES)
    if(ADAMANT_HIP STREQUAL "ON")
        message(FATAL_ERROR "ADAMANT_HIP is ON, but ${ADAMANT_HIPCC} compiles neither for gfx90a nor for gfx942. Set "
                            "CMAKE_HIP_ARCHITECTURES to what it compiles for, or ADAMANT_HIP=OFF.")
    endif()
    return()
endif()
set(adamant_hip TRUE)
message(STATUS "HIP: programs for ${ADAMANT_HIP_ARCHITECTURES} by ${ADAMANT_HIPCC}")

# Compiles a file by hipcc, which it includes, and appends the object to the sources of a target. More arguments: of hipcc.
function(adamant_hip_source name file)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/adamant_sources/${name}.hip.o)
    list(TRANSFORM ADAMANT_HIP_ARCHITECTURES PREPEND --offload-arch= OUTPUT_VARIABLE architectures)
    add_custom_command(OUTPUT ${object} DEPFILE ${object}.d DEPENDS ${file}
        COMMAND ${ADAMANT_HIPCC} ${architectures} -x hip -std=c++20 -O3 -fopenmp -fPIC -fvisibility=hidden -Wall -Wextra
                "$<$<BOOL:${ADAMANT_WARNINGS_AS_ERRORS}>:-Werror>" -DADAMANT_SEPARATE_COMPILATION
                -I${PROJECT_SOURCE_DIR}/include ${ARGN} -MD -MF ${object}.d -MT ${object} -c ${file} -o ${object}
        COMMENT "Compiling ${name} by hipcc" COMMAND_EXPAND_LISTS VERBATIM)
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    target_sources(${name} PRIVATE ${object})
    target_link_libraries(${name} PRIVATE ${ADAMANT_HIP_LIBRARY})
endfunction()
find_library(ADAMANT_HIP_LIBRARY amdhip64 HINTS ENV ROCM_PATH PATHS /opt/rocm PATH_SUFFIXES lib REQUIRED)
mark_as_advanced(ADAMANT_HIP_LIBRARY)
