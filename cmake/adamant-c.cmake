# SPDX-License-Identifier: Apache-2.0
# The library with the C interface. It is named after the version of that interface, not of the project.
file(STRINGS include/adamant/adamant.h c_version REGEX "#define ADAMANT_C_VERSION ")
string(REGEX REPLACE "[^0-9]" "" c_version "${c_version}")

file(GLOB c_bodies CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include include/adamant/detail/c/*.ipp)
set(c_sources "")
foreach(body IN LISTS c_bodies)
    cmake_path(GET body STEM name)
    adamant_generate_source(c_sources c_${name} "#include <${body}>")
endforeach()
add_library(adamant_c SHARED ${c_sources})
add_library(adamant::c ALIAS adamant_c)
set(with_json ${c_sources})
list(FILTER with_json INCLUDE REGEX "/c_(state|zenflow|tuning|deepspeed)\\.cpp$")
adamant_compile_together(adamant_c json ${with_json})
target_sources(adamant_c PUBLIC FILE_SET HEADERS BASE_DIRS include FILES include/adamant/adamant.h)
target_link_libraries(adamant_c PRIVATE adamant_compiled adamant_opt_in adamant_own_flags)
set_target_properties(adamant_c PROPERTIES
    EXPORT_NAME c SOVERSION ${c_version} CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/adamant_c.map)
# The standard library's templates are visible whatever the flags say. And threads of the OpenMP runtime, which goes with
# the library, may still be ending when the last executor is freed: so nothing is unloaded.
target_link_options(adamant_c PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/adamant_c.map -Wl,-z,nodelete)

# The part for GPUs is nvcc's, or hipcc's if ADAMANT_HIP asks for it: the library then needs libamdhip64. Without,
# adamant_cuda_device_create() says what to build.
if(CMAKE_CUDA_COMPILER)
    find_package(CUDAToolkit REQUIRED)
    set(cuda_source ${CMAKE_CURRENT_BINARY_DIR}/adamant_sources/c_cuda_device.cu)
    file(CONFIGURE OUTPUT ${cuda_source} CONTENT "#include <adamant/detail/c/cuda_device.cuh>\n" @ONLY)
    add_library(adamant_c_cuda OBJECT ${cuda_source})
    adamant_cuda_program(adamant_c_cuda)
    set_target_properties(adamant_c_cuda PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_VISIBILITY_PRESET hidden)
    target_sources(adamant_c PRIVATE $<TARGET_OBJECTS:adamant_c_cuda>)
    target_link_libraries(adamant_c PRIVATE CUDA::cudart_static)
    target_compile_definitions(adamant_c PRIVATE ADAMANT_C_CUDA)
elseif(ADAMANT_HIP STREQUAL "ON")
    adamant_hip_source(adamant_c ${PROJECT_SOURCE_DIR}/include/adamant/detail/c/cuda_device.cuh)
    target_compile_definitions(adamant_c PRIVATE ADAMANT_C_CUDA)
endif()
