# SPDX-License-Identifier: Apache-2.0
# Every public header compiles after macros that system headers and users' files define: those of macOS's
# AssertMacros.h, sys/sysmacros.h, complex.h, termios.h and drivers. Left out are min and max as macros with
# arguments, which the standard library itself does not survive, and near and far, which only Windows defines.
file(MAKE_DIRECTORY ${SCRATCH})
file(GLOB_RECURSE headers RELATIVE ${SOURCE}/include ${SOURCE}/include/adamant/*.hpp ${SOURCE}/include/adamant/*.ipp)
set(system "")
foreach(header IN LISTS headers)
    file(STRINGS ${SOURCE}/include/${header} lines REGEX "^ *#include <[^>]*>")
    foreach(line IN LISTS lines)
        string(REGEX MATCH "<([^>]*)>" name "${line}")
        set(name ${CMAKE_MATCH_1})
        if(NOT name MATCHES "^(adamant|cuda|xsimd|nlohmann|xxhash|arm|hwloc/cuda)")
            list(APPEND system ${name})
        endif()
    endforeach()
endforeach()
list(REMOVE_DUPLICATES system)
set(text "")
foreach(name IN LISTS system) # before the macros, which are not for them
    string(APPEND text "#if __has_include(<${name}>)\n#include <${name}>\n#endif\n")
endforeach()
foreach(macro check verify require check_string verify_noerr require_noerr major minor makedev)
    string(APPEND text "#undef ${macro}\n#define ${macro}(...) hostile macro(\n")
endforeach()
set(objects I B0 B50 OK ERROR IN OUT OPTIONAL small interface linux unix)
foreach(macro IN LISTS objects)
    string(APPEND text "#undef ${macro}\n#define ${macro} hostile macro(\n")
endforeach()
string(APPEND text "#include <adamant/adamant.hpp>\n#include <adamant/cores.hpp>
#include <adamant/memory.hpp>
#include <adamant/resctrl.hpp>
#include <adamant/split.hpp>
#include <adamant/tune.hpp>\n")
file(WRITE ${SCRATCH}/hostile_macros.cpp "${text}")
foreach(mode "" -DADAMANT_SEPARATE_COMPILATION)
    execute_process(COMMAND ${CXX} -std=c++20 -fopenmp -fsyntax-only ${mode} -I${SOURCE}/include ${SCRATCH}/hostile_macros.cpp
                    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
