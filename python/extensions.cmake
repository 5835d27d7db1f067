# SPDX-License-Identifier: Apache-2.0
# The target adamant_signature: adamant's extension module for adamant.torch, over the limited API of CPython.
enable_language(C)
find_package(Python3 3.9 QUIET COMPONENTS Interpreter Development.Module)
if(Python3_Development.Module_FOUND)
    add_library(adamant_signature MODULE ${CMAKE_CURRENT_LIST_DIR}/src/signature.c)
    target_include_directories(adamant_signature SYSTEM PRIVATE ${Python3_INCLUDE_DIRS})
    target_compile_options(adamant_signature PRIVATE -Wall -Wextra $<$<BOOL:${ADAMANT_WARNINGS_AS_ERRORS}>:-Werror>)
    set_target_properties(adamant_signature PROPERTIES PREFIX "" OUTPUT_NAME _signature SUFFIX .abi3.so
                          LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} C_STANDARD 11 C_STANDARD_REQUIRED ON
                          C_VISIBILITY_PRESET hidden)
endif()
