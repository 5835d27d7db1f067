# SPDX-License-Identifier: Apache-2.0
# The steps of every combination of element types, compiled once for the C library, the tool and the tests.
set(combinations examples/combinations_float32.cpp examples/combinations_bfloat16.cpp examples/combinations_float16.cpp)
add_library(adamant_combinations OBJECT EXCLUDE_FROM_ALL ${combinations})
target_include_directories(adamant_combinations INTERFACE examples)
target_link_libraries(adamant_combinations PUBLIC adamant::adamant PRIVATE adamant_own_flags)
set_target_properties(adamant_combinations PROPERTIES
    POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
if(ADAMANT_SANITIZE STREQUAL thread) # the library's own tests have instrumented kernels; here it is the calls
    set_source_files_properties(${combinations} PROPERTIES COMPILE_OPTIONS -fno-sanitize=thread)
elseif(ADAMANT_SANITIZE) # two thirds of the compiling; tests of step() keep the check, over kernels of their own
    set_source_files_properties(${combinations} PROPERTIES COMPILE_OPTIONS -fno-sanitize=pointer-overflow)
endif()
