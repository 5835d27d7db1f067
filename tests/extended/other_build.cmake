# SPDX-License-Identifier: Apache-2.0
# Configures, builds and tests one preset in BUILD.
function(run)
    execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${SOURCE} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run(${CMAKE_COMMAND} --preset ${PRESET} -B ${BUILD})
run(${CMAKE_COMMAND} --build ${BUILD})
run(${CMAKE_CTEST_COMMAND} --test-dir ${BUILD} --output-on-failure --parallel 2)
