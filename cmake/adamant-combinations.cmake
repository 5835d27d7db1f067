# SPDX-License-Identifier: Apache-2.0
# Kernels compiled once for several of our own programs, as each is code for five instruction sets.

# Those that training mostly takes, for sources that include kernels_once.hpp, be it by this option.
set(with_kernels_once -include ${PROJECT_SOURCE_DIR}/examples/kernels_once.hpp)
add_library(adamant_kernels_once OBJECT EXCLUDE_FROM_ALL examples/kernels_once.cpp)
target_include_directories(adamant_kernels_once INTERFACE examples)

# The steps of every combination of element types, chosen at run time: for the C library, the tool and the tests.
set(combinations examples/combinations_float32.cpp examples/combinations_bfloat16.cpp examples/combinations_float16.cpp)
add_library(adamant_combinations OBJECT EXCLUDE_FROM_ALL ${combinations})
target_include_directories(adamant_combinations INTERFACE examples)

foreach(objects adamant_kernels_once adamant_combinations)
    target_link_libraries(${objects} PUBLIC adamant::adamant PRIVATE adamant_own_flags)
    set_target_properties(${objects} PROPERTIES
        POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endforeach()
if(ADAMANT_SANITIZE STREQUAL thread) # the library's own tests have instrumented kernels; here it is the calls
    set_source_files_properties(${combinations} PROPERTIES COMPILE_OPTIONS -fno-sanitize=thread)
elseif(ADAMANT_SANITIZE) # two thirds of the compiling
    set_source_files_properties(${combinations} examples/kernels_once.cpp PROPERTIES COMPILE_OPTIONS -fno-sanitize=pointer-overflow)
endif()
