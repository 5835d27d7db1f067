# SPDX-License-Identifier: Apache-2.0
# The headers compiled by Clang, optimised for this CPU and with leave to fuse products with sums: no bit differs. The
# library's tests are compiled by Clang with the sanitizers.
execute_process(COMMAND ${CLANG} -std=c++20 -O2 -fopenmp -march=native -ffp-contract=fast -Wall -Wextra -Werror -I${SOURCE}/include
                        ${SOURCE}/tests/embed/embed.cpp -o ${SCRATCH}/embed_clang -lhwloc
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${SCRATCH}/embed_clang COMMAND_ERROR_IS_FATAL ANY)
