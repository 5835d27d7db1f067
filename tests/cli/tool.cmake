# SPDX-License-Identifier: Apache-2.0
# For tests of one command of the tool, COMMAND, that run it and look at what it says.

# Text for people: no line is wider than a terminal of 100 columns, but for a long path, and one of a thing is in the
# singular.
function(is_readable text)
    string(REPEAT "[^\n]" 101 long)
    string(REPEAT "[^ \n]" 90 path)
    string(REGEX REPLACE "${path}[^ \n]*" "path" lines "${text}")
    if(lines MATCHES "${long}")
        message(FATAL_ERROR "a line is too long:\n${text}")
    endif()
    is_singular("${text}")
endfunction()
function(is_singular text)
    set(things "rank|core|thread|PU|CPU|GPU|package|NUMA node|node|setting|step|layer|element|sequence|token|round|param")
    if("\n${text}" MATCHES "[^0-9.,]1 (${things})s[^a-z]" OR text MATCHES "there are 1[^0-9.,]")
        message(FATAL_ERROR "'${CMAKE_MATCH_0}' has a plural for one:\n${text}")
    endif()
endfunction()

# Its exit status must be as expected; what it said is in out and err.
function(run expected)
    execute_process(COMMAND ${ADAMANT} ${COMMAND} ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE err)
    if(NOT status EQUAL expected)
        message(FATAL_ERROR "adamant ${COMMAND} ${ARGN}: exit status ${status}, expected ${expected}\n${out}${err}")
    endif()
    if(NOT out MATCHES "^({|what,)") # JSON and CSV are for programs
        is_readable("${out}")
    endif()
    is_singular("${err}")
    set(out "${out}" PARENT_SCOPE)
    set(err "${err}" PARENT_SCOPE)
endfunction()
function(holds text pattern)
    if(NOT text MATCHES "${pattern}")
        message(FATAL_ERROR "'${pattern}' is missing in\n${text}")
    endif()
endfunction()
# An error: exit status 2, nothing on stdout.
function(fails pattern)
    run(2 ${ARGN})
    if(NOT out STREQUAL "" OR NOT err MATCHES "${pattern}")
        message(FATAL_ERROR "adamant ${COMMAND} ${ARGN}: expected '${pattern}'\n${out}${err}")
    endif()
endfunction()
