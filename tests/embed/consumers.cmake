# SPDX-License-Identifier: Apache-2.0
# The package as its users meet it: found where it is installed, as a subdirectory, compiled separately, and from C. Each
# runs a program; those by CMake compile a file whose warnings are errors, too. tests/docs/installed.py has the other ways:
# FetchContent, pkg-config, and one plain compiler line.
file(REMOVE_RECURSE ${SCRATCH})
set(prefix ${SCRATCH}/prefix)
set(consumer ${CMAKE_CURRENT_LIST_DIR}/consumer)
set(program ${SOURCE}/examples/hello.cpp)
function(run)
    execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY COMMAND_ECHO STDOUT)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
if(EXISTS ${prefix}/bin/adamant AND NOT EXISTS ${prefix}/share/bash-completion/completions/adamant)
    message(FATAL_ERROR "the tool is installed without its completion for bash")
endif()
foreach(how find_package add_subdirectory)
    set(settings -DCMAKE_CXX_COMPILER=${CXX})
    if(how STREQUAL "find_package") # as a project of shared libraries, with another compiler than the package was built by
        set(settings -DBUILD_SHARED_LIBS=ON -DCMAKE_CXX_VISIBILITY_PRESET=hidden -DCMAKE_VISIBILITY_INLINES_HIDDEN=ON)
        if(CLANG)
            list(APPEND settings -DCMAKE_CXX_COMPILER=${CLANG})
        endif()
    endif()
    run(${CMAKE_COMMAND} -S ${consumer} -B ${SCRATCH}/${how} -G Ninja -DHOW=${how}
        -DPROGRAM=${program} -DADAMANT_SOURCE=${SOURCE} -DCMAKE_PREFIX_PATH=${prefix} -DVERSION=${VERSION} ${settings})
    run(${CMAKE_COMMAND} --build ${SCRATCH}/${how})
    run(${SCRATCH}/${how}/consumer)
endforeach()
run(${SCRATCH}/find_package/consumer_compiled)

# By hand, compiled separately: one file has all definitions. Looked through only, as its code takes a compiler minutes.
file(WRITE ${SCRATCH}/definitions.cpp "#include <adamant/src.hpp>\n")
run(${CXX} -std=c++20 -fopenmp -fsyntax-only -DADAMANT_SEPARATE_COMPILATION -I${prefix}/include ${SCRATCH}/definitions.cpp)

# The C library, by CMake in a project that knows no C++, and by pkg-config.
file(GLOB_RECURSE c_library ${prefix}/*/libadamant_c.so)
find_program(pkg_config pkg-config)
if(c_library)
    run(${CMAKE_COMMAND} -S ${consumer}/c -B ${SCRATCH}/c -G Ninja -DPROGRAM=${SOURCE}/examples/c_loop.c
        -DCMAKE_PREFIX_PATH=${prefix} -DVERSION=${VERSION})
    run(${CMAKE_COMMAND} --build ${SCRATCH}/c)
    run(${SCRATCH}/c/consumer ${SCRATCH}/c/state.safetensors)
    if(pkg_config)
        get_filename_component(c_folder ${c_library} DIRECTORY)
        set(ENV{PKG_CONFIG_PATH} ${c_folder}/pkgconfig)
        execute_process(COMMAND ${pkg_config} --cflags --libs adamant_c OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY
                        OUTPUT_STRIP_TRAILING_WHITESPACE)
        separate_arguments(flags UNIX_COMMAND "${flags}")
        find_program(cc cc REQUIRED)
        run(${cc} -std=c99 -O2 -ffp-contract=off ${SOURCE}/examples/c_loop.c ${flags} -Wl,-rpath,${c_folder} -o ${SCRATCH}/c_by_pkg_config)
        run(${SCRATCH}/c_by_pkg_config ${SCRATCH}/c/state.safetensors)
    endif()
endif()

# Off unless top-level: nothing of ours is built or installed by a project that includes us.
foreach(ours adamant_tests adamant_cli train_text libadamant_c)
    file(GLOB_RECURSE found ${SCRATCH}/add_subdirectory/${ours}*)
    if(found)
        message(FATAL_ERROR "built by a consumer that did not ask for it: ${found}")
    endif()
endforeach()
