# SPDX-License-Identifier: Apache-2.0
# For the CMakeLists.txt of all folders.

# A test of what this machine lacks is shown as skipped, and says what to install.
function(skipped_test name why)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${why}")
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "skipped:")
endfunction()

# extended_test(<part> TESTS <test>... [PROGRAMS <target>...] [NEEDS <target>...]): tests that are run by `tests/all`, as a
# whole or by the name of the part. The test programs.<part>, which they wait for, builds what they need; PROGRAMS, which
# nobody else needs, are left out of `all`.
function(extended_test part)
    if(NOT ADAMANT_EXTENDED_TESTS)
        return()
    endif()
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "TESTS;PROGRAMS;NEEDS")
    set_tests_properties(${arg_TESTS} PROPERTIES LABELS "extended;${part}")
    if(NOT arg_PROGRAMS AND NOT arg_NEEDS)
        return()
    endif()
    if(NOT TARGET programs_${part})
        add_custom_target(programs_${part})
        add_test(NAME programs.${part}
                 COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target programs_${part})
        # One build of this tree at a time. Other tests, such as the download of PyTorch, run beside it.
        set_tests_properties(programs.${part} PROPERTIES LABELS "extended;${part}" FIXTURES_SETUP programs_${part}
                             RESOURCE_LOCK build_tree TIMEOUT 1800)
    endif()
    add_dependencies(programs_${part} ${arg_PROGRAMS} ${arg_NEEDS})
    set_tests_properties(${arg_TESTS} PROPERTIES FIXTURES_REQUIRED programs_${part})
    foreach(program IN LISTS arg_PROGRAMS)
        set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    endforeach()
endfunction()

# What the sanitizers must know of the OpenMP runtime, which they do not see into: for all tests of the calling file.
function(tell_sanitizers)
    set(support ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
    get_property(all DIRECTORY PROPERTY TESTS)
    if(ADAMANT_SANITIZE AND all)
        set_property(TEST ${all} APPEND PROPERTY ENVIRONMENT LSAN_OPTIONS=suppressions=${support}/lsan.supp
            TSAN_OPTIONS=ignore_noninstrumented_modules=1:die_after_fork=0:suppressions=${support}/tsan.supp
            UBSAN_OPTIONS=print_stacktrace=1)
    endif()
endfunction()
