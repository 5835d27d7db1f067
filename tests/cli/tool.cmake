# SPDX-License-Identifier: Apache-2.0
# For tests of one command of the tool, COMMAND, that run it and look at what it says.

# Its exit status must be as expected; what it said is in out and err.
function(run expected)
    execute_process(COMMAND ${ADAMANT} ${COMMAND} ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE err)
    if(NOT status EQUAL expected)
        message(FATAL_ERROR "adamant ${COMMAND} ${ARGN}: exit status ${status}, expected ${expected}\n${out}${err}")
    endif()
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
