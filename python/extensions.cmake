# SPDX-License-Identifier: Apache-2.0
# The targets adamant_signature, adamant_ready_queue, adamant_lists and adamant_signal_handlers: extension modules over
# the limited API of CPython. The target adamant_python builds them and the C library: all that the package loads.
enable_language(C)
find_package(Python3 3.9 QUIET COMPONENTS Interpreter Development.Module)
if(Python3_Development.Module_FOUND)
    find_package(Threads REQUIRED)
    set(extensions signature ready_queue lists signal_handlers)
    foreach(name IN LISTS extensions)
        add_library(adamant_${name} MODULE ${CMAKE_CURRENT_LIST_DIR}/src/${name}.c)
        target_include_directories(adamant_${name} SYSTEM PRIVATE ${Python3_INCLUDE_DIRS})
        target_include_directories(adamant_${name} PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../include)
        target_link_libraries(adamant_${name} PRIVATE Threads::Threads)
        target_compile_options(adamant_${name} PRIVATE -Wall -Wextra $<$<BOOL:${ADAMANT_WARNINGS_AS_ERRORS}>:-Werror>)
        set_target_properties(adamant_${name} PROPERTIES PREFIX "" OUTPUT_NAME _${name} SUFFIX .abi3.so
                              LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} C_STANDARD 11 C_STANDARD_REQUIRED ON
                              C_VISIBILITY_PRESET hidden)
    endforeach()
    list(TRANSFORM extensions PREPEND adamant_)
    add_custom_target(adamant_python DEPENDS adamant_c ${extensions})
endif()
