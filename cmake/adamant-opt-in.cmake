# SPDX-License-Identifier: Apache-2.0
# What the opt-in headers need, for our own programs alone. Also verifies that each of them compiles alone with it.
find_package(nlohmann_json 3.11 REQUIRED)
find_path(ADAMANT_XXHASH_INCLUDE_DIR xxhash.h)
if(NOT ADAMANT_XXHASH_INCLUDE_DIR)
    message(FATAL_ERROR "the C library and the tests need the header of xxHash 0.8 or newer and found none. On Debian and "
                        "Ubuntu: apt-get install libxxhash-dev. Elsewhere set CMAKE_PREFIX_PATH.")
endif()
add_library(adamant_xxhash INTERFACE)
target_include_directories(adamant_xxhash SYSTEM INTERFACE ${ADAMANT_XXHASH_INCLUDE_DIR})

add_library(adamant_opt_in INTERFACE)
list(TRANSFORM opt_in_headers PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE paths)
target_sources(adamant_opt_in INTERFACE FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${paths})
target_link_libraries(adamant_opt_in INTERFACE adamant::adamant nlohmann_json::nlohmann_json adamant_xxhash)
