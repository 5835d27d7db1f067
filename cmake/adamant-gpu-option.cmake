# SPDX-License-Identifier: Apache-2.0
# adamant_gpu_option(<name> <compiler> <help>): adds the option <name> of AUTO, ON and OFF, and sets <name>_wanted if this
# build is to look for the compiler.
function(adamant_gpu_option name compiler help)
    set(${name} AUTO CACHE STRING "${help}")
    set_property(CACHE ${name} PROPERTY STRINGS AUTO ON OFF)
    set(value ${${name}})
    if(NOT value MATCHES "^(AUTO|ON|OFF)$")
        message(FATAL_ERROR "cannot use ${name}='${value}': it is not AUTO, ON or OFF. Set it to one of these.")
    endif()
    set(wanted TRUE)
    if(ADAMANT_SANITIZE OR ADAMANT_SECOND_COMPILER OR CMAKE_CROSSCOMPILING)
        if(value STREQUAL "ON")
            message(FATAL_ERROR "cannot use ${name}=ON: builds with sanitizers, of a second compiler and for another machine "
                                "leave ${compiler} out. Set it to AUTO there.")
        endif()
        set(wanted FALSE)
    elseif(value STREQUAL "OFF")
        set(wanted FALSE)
    endif()
    set(${name}_wanted ${wanted} PARENT_SCOPE)
endfunction()
