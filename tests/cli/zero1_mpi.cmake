# SPDX-License-Identifier: Apache-2.0
# Training over ranks ends with the same weights for every number of ranks and threads, wherever it is stopped and
# resumed by another number of ranks. A run that would be another one is refused.
cmake_minimum_required(VERSION 3.25)
set(text ${CMAKE_CURRENT_LIST_DIR}/../../LICENSE)
set(file ${SCRATCH}/state)
file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH})
set(ENV{OMP_WAIT_POLICY} passive) # there are more threads than cores
set(ENV{MPIEXEC_TIMEOUT} 60) # ranks that disagree wait for each other; mpiexec ends them all
# The 5th step overflows on one rank alone, and has to be skipped on all.
set(run --text ${text} --steps 30 --seed 3 --overflow 5)

# In `out` and `err`; fails for another exit status than expected. OPTIONS are mpiexec's.
function(train ranks expected)
    cmake_parse_arguments(PARSE_ARGV 2 with "" "" "OPTIONS")
    execute_process(COMMAND ${MPIEXEC} --allow-run-as-root --oversubscribe ${with_OPTIONS} -n ${ranks} ${ZERO1_MPI}
                            ${with_UNPARSED_ARGUMENTS}
                    RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE err TIMEOUT 90)
    if(NOT result EQUAL expected)
        message(FATAL_ERROR "${ranks} ranks, ${ARGN}: exit status ${result}, expected ${expected}\n${out}${err}")
    endif()
    set(out "${out}" PARENT_SCOPE)
    set(err "${err}" PARENT_SCOPE)
endfunction()

# The same last norm and weights as in the first run; the norm has bits that clipping rounds away. ARGN: as train()'s.
function(same_bits ranks)
    train(${ranks} 0 ${ARGN})
    if(NOT out MATCHES "step 30 of 30, [^\n]*(norm [0-9.]+).*weights (digest [0-9a-f]+)")
        message(FATAL_ERROR "${ranks} ranks, ${ARGN}: no norm or digest\n${out}${err}")
    endif()
    set(found "${CMAKE_MATCH_1}, ${CMAKE_MATCH_2}")
    message(STATUS "${ranks} ranks, ${ARGN}: ${found}")
    if(NOT DEFINED digest)
        set(digest "${found}" PARENT_SCOPE)
    elseif(NOT found STREQUAL digest)
        message(FATAL_ERROR "${ranks} ranks, ${ARGN}: ${found}, expected ${digest}\n${out}${err}")
    endif()
    set(out "${out}" PARENT_SCOPE)
endfunction()

foreach(ranks 1 2 4)
    same_bits(${ranks} ${run})
    math(EXPR last "${ranks} - 1")
    if(NOT out MATCHES "rank ${last}: (optimizer on PUs [0-9]|one thread, bound to nothing, on shared cores: )" OR
       NOT out MATCHES "${ranks} ranks, tier [a-z0-9_]+, 1 steps skipped")
        message(FATAL_ERROR "${ranks} ranks do not say where they are, or did not skip one step:\n${out}")
    endif()
endforeach()
# Ranks that mpiexec leaves unbound divide the cores themselves; more threads than ranks; one rank whose weights make no
# way through MPI; sums over ranks in another order (1: linear, 4: along a ring).
same_bits(2 ${run} OPTIONS --bind-to none)
same_bits(2 ${run} --threads 3)
same_bits(1 ${run} --threads 2)
foreach(order 1 4)
    same_bits(4 ${run} OPTIONS --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_allreduce_algorithm ${order})
endforeach()

# What 4 ranks have saved in the middle, in front of a run that others go on with: of 2, which save in their turn, of 1,
# and of 4 again.
train(4 0 ${run} --until 13 --checkpoint ${file} --every 9)
same_bits(1 ${run} --resume ${file})
same_bits(2 ${run} --resume ${file})
train(2 0 ${run} --until 22 --resume ${file} --checkpoint ${file}2)
if(NOT out MATCHES "resumed after step 13, from 4 parts\n")
    message(FATAL_ERROR "nothing was resumed:\n${out}")
endif()
same_bits(4 ${run} --resume ${file}2)

# refuses(<ranks> <message> <argument>...): before the first step, with status 2, and all ranks end.
function(refuses ranks message)
    train(${ranks} 2 ${ARGN})
    if(NOT err MATCHES "zero1_mpi: rank [0-3]: [^\n]*${message}" OR out MATCHES "step [0-9]+ of")
        message(FATAL_ERROR "${ranks} ranks, ${ARGN}: expected '${message}' before the first step:\n${out}${err}")
    endif()
endfunction()
refuses(4 "there is no option '--stps'" --stps 3)
refuses(2 "--batch is 6, but must be a multiple of 4" ${run} --batch 6)
refuses(3 "there are 3 ranks, but 4 micro-batches to divide; start 1, 2 or 4 ranks" ${run})
refuses(2 "none/a[^\n]*: open\\(\\) of its folder failed" ${run} --checkpoint ${SCRATCH}/none/a)
refuses(2 "there is no '[^\n]*/none.0-of-1', nor one by more ranks" ${run} --resume ${SCRATCH}/none)
refuses(2 "is of a run with --seed 3, but this one has --seed 4; give --seed 3" ${run} --seed 4 --resume ${file})
refuses(1 "is of a run with --batch 128, but this one has --batch 64" ${run} --batch 64 --resume ${file})
refuses(4 "learned from another text" ${run} --text ${CMAKE_CURRENT_LIST_FILE} --resume ${file})
# Parts that are not of one checkpoint.
file(COPY_FILE ${file}2.0-of-2 ${file}.0-of-2)
refuses(2 "there are parts of '[^\n]*' by 2 and by 4 ranks; remove those that you do not mean" ${run} --resume ${file})
file(REMOVE ${file}.0-of-2)
train(4 0 ${run} --until 14 --checkpoint ${file}3)
file(COPY_FILE ${file}3.2-of-4 ${file}.2-of-4)
refuses(2 "cannot merge states: step is 13 in state 0 and 14 in state 2" ${run} --resume ${file})
file(REMOVE ${file}.2-of-4)
refuses(4 "state.2-of-4" ${run} --resume ${file})
