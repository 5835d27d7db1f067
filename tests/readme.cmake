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
