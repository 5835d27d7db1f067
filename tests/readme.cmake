# SPDX-License-Identifier: Apache-2.0
# The README's program is the one that is built and run.
file(READ ${SOURCE}/README.md readme)
file(READ ${SOURCE}/examples/hello.cpp program)
string(FIND "${readme}" "```cpp\n${program}```" at)
if(at EQUAL -1)
    message(FATAL_ERROR "README.md does not show examples/hello.cpp as it is")
endif()
