# SPDX-License-Identifier: Apache-2.0
# adamant::compiled: the library compiled once, static or shared by BUILD_SHARED_LIBS, by whoever links to it and with
# their compiler. Used by the build and by the installed package alike, after adamant::adamant and with the folder of the
# headers in ADAMANT_INCLUDE_DIR.
set(adamant_sources library)
foreach(types float32 float32_to_bfloat16 float32_to_float16 split_float32 bfloat16 float16) # longest first, as they take minutes
    list(APPEND adamant_sources formats_${types})
endforeach()
list(TRANSFORM adamant_sources REPLACE "(.+)" "${ADAMANT_INCLUDE_DIR}/adamant/src/\\1.cpp")

add_library(adamant_compiled EXCLUDE_FROM_ALL ${adamant_sources})
add_library(adamant::compiled ALIAS adamant_compiled)
target_compile_features(adamant_compiled PUBLIC cxx_std_20)
target_compile_definitions(adamant_compiled PUBLIC ADAMANT_SEPARATE_COMPILATION)
target_include_directories(adamant_compiled PUBLIC ${ADAMANT_INCLUDE_DIR})
target_link_libraries(adamant_compiled PRIVATE adamant::adamant)
set_target_properties(adamant_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON)
