# SPDX-License-Identifier: Apache-2.0
# The README's programs are the ones that are built and run.
file(READ ${SOURCE}/README.md readme)
foreach(name hello engine)
    file(READ ${SOURCE}/examples/${name}.cpp program)
    string(FIND "${readme}" "```cpp\n${program}```" at)
    if(at EQUAL -1)
        message(FATAL_ERROR "README.md does not show examples/${name}.cpp as it is")
    endif()
endforeach()

cmake_policy(SET CMP0007 NEW)
# And what it shows of C are lines of the program in C.
string(REGEX MATCH "```c\n([^`]*)```" block "${readme}")
string(REPLACE ";" "," block "${CMAKE_MATCH_1}") # lists of CMake
string(REPLACE "\n" ";" lines "${block}")
file(READ ${SOURCE}/examples/c_loop.c program)
string(REPLACE ";" "," program "${program}")
list(LENGTH lines count)
foreach(line IN LISTS lines)
    string(STRIP "${line}" line)
    string(FIND "${program}" " ${line}\n" at)
    if(at EQUAL -1 AND NOT line STREQUAL "")
        message(FATAL_ERROR "README.md shows a line that is none of examples/c_loop.c: ${line}")
    endif()
endforeach()
if(count LESS 10)
    message(FATAL_ERROR "README.md shows nothing of examples/c_loop.c")
endif()
