# SPDX-License-Identifier: Apache-2.0
# Over the library that is compiled separately, a file of other flags leaves no function of ours behind that a linker
# could take for the rest of the program: all are in the namespace of its flags, but for the copies and destructors that
# the language gives to plain structs, as it does to the standard library's.
execute_process(COMMAND ${CXX} -std=c++20 -O0 -march=native -DADAMANT_SEPARATE_COMPILATION -I${SOURCE}/include
                        -c ${SOURCE}/examples/engine.cpp -o ${SCRATCH}/symbols.o
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${NM} ${SCRATCH}/symbols.o OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" symbols "${symbols}")
set(ours 0)
set(left "")
foreach(symbol IN LISTS symbols)
    if(NOT symbol MATCHES " [WVu] (_ZNK?7adamant2v0.*)$")
        continue()
    endif()
    set(name ${CMAKE_MATCH_1})
    math(EXPR ours "${ours} + 1")
    if(NOT name MATCHES "^_ZNK?7adamant2v0[0-9]+v0_"       # of these flags
       AND NOT name MATCHES "(C[12]|aS)E(v|OS[0-9]*_|RKS[0-9]*_)$" # made, copied, moved,
       AND NOT name MATCHES "D[0-2]Ev$")                      # destroyed
        string(APPEND left "${name}\n")
    endif()
endforeach()
if(NOT left STREQUAL "")
    message(FATAL_ERROR "in the namespace of all flags:\n${left}")
endif()
if(ours LESS 5)
    message(FATAL_ERROR "only ${ours} functions of ours were found: this test looks in the wrong place")
endif()
message(STATUS "${ours} functions, each in its place")
