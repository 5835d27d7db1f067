# SPDX-License-Identifier: Apache-2.0
# Whether our own programs for GPUs are built: enables the language where it is there. A program that uses the CUDA backend
# needs nothing of this: it includes adamant/cuda.cuh in a .cu file.
adamant_gpu_option(ADAMANT_CUDA nvcc "Build our own programs for GPUs with nvcc: AUTO (where there is one), ON or OFF")
if(NOT ADAMANT_CUDA_wanted)
    return()
endif()
include(CheckLanguage)
block(PROPAGATE CMAKE_CUDA_COMPILER)
    set(CMAKE_MESSAGE_LOG_LEVEL NOTICE) # most machines have none, and it takes three lines to say so
    check_language(CUDA)
endblock()
if(NOT CMAKE_CUDA_COMPILER)
    if(ADAMANT_CUDA STREQUAL "ON")
        message(FATAL_ERROR "ADAMANT_CUDA is ON, but there is no CUDA compiler that works: CMake looked for nvcc along PATH, in "
                            "CUDACXX and below CUDAToolkit_ROOT and CUDA_PATH, and tried it with its host compiler "
                            "(CUDAHOSTCXX, or else g++). Install the CUDA toolkit, 12.0 or newer, and set "
                            "CMAKE_CUDA_COMPILER=/usr/local/cuda/bin/nvcc if it lies elsewhere. Or set ADAMANT_CUDA=OFF: "
                            "nothing else needs it.")
    endif()
    return()
endif()

# enable_language() leaves a choice of its own in the cache, so what was given has to be known before, and kept.
if(NOT DEFINED ADAMANT_CUDA_ARCHITECTURES_GIVEN)
    set(given FALSE)
    if(DEFINED CMAKE_CUDA_ARCHITECTURES OR DEFINED ENV{CUDAARCHS})
        set(given TRUE)
    endif()
    set(ADAMANT_CUDA_ARCHITECTURES_GIVEN ${given} CACHE INTERNAL "")
endif()
enable_language(CUDA)
if(NOT ADAMANT_CUDA_ARCHITECTURES_GIVEN) # machine code for what is common, and what newer GPUs translate for themselves
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
    if(CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA" AND CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13) # which dropped it
        list(PREPEND CMAKE_CUDA_ARCHITECTURES 70-real)
    endif()
endif()
message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION}: programs for ${CMAKE_CUDA_ARCHITECTURES}")

# For a program with files of CUDA, which know adamant's headers and what those need.
function(adamant_cuda_program name)
    if("cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
        target_compile_features(${name} PRIVATE cuda_std_20)
    else() # CMake 3.25 does not know that nvcc has it
        target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
    endif()
    # Not linked to adamant::adamant, which asks of C++ what CMake 3.25 takes for what CUDA is to be, too.
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include ${CMAKE_CURRENT_SOURCE_DIR})
    target_link_libraries(${name} PRIVATE $<LINK_ONLY:adamant_compiled> adamant::xsimd adamant::hwloc OpenMP::OpenMP_CXX)
    target_compile_definitions(${name} PRIVATE ADAMANT_SEPARATE_COMPILATION)
    # With extensions off CMake adds a -std of its own.
    set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}"
                          CUDA_RUNTIME_LIBRARY Static CUDA_EXTENSIONS ON CXX_STANDARD 20)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fopenmp,-Wall,-Wextra>)
    if(ADAMANT_WARNINGS_AS_ERRORS)
        target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
    endif()
endfunction()
