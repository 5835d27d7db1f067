# SPDX-License-Identifier: Apache-2.0
# The library with the C interface. It is named after the version of that interface, not of the project.
file(STRINGS include/adamant/c/status.h c_version REGEX "#define ADAMANT_C_VERSION ")
string(REGEX REPLACE "[^0-9]" "" c_version "${c_version}")

file(GLOB c_sources CONFIGURE_DEPENDS include/adamant/c/*.cpp)
file(GLOB c_headers CONFIGURE_DEPENDS include/adamant/c/*.h)
add_library(adamant_c SHARED ${c_sources})
add_library(adamant::c ALIAS adamant_c)
target_sources(adamant_c PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${c_headers})
target_link_libraries(adamant_c PRIVATE adamant_compiled adamant_opt_in adamant_own_flags)
set_target_properties(adamant_c PROPERTIES
    EXPORT_NAME c SOVERSION ${c_version} CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/adamant_c.map)
# The standard library's templates are visible whatever the flags say. And threads of the OpenMP runtime, which goes with
# the library, may still be ending when the last executor is freed: so nothing is unloaded.
target_link_options(adamant_c PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/adamant_c.map -Wl,-z,nodelete)

# The part for GPUs is nvcc's. Without, adamant_cuda_device_create() says what to build.
if(CMAKE_CUDA_COMPILER)
    find_package(CUDAToolkit REQUIRED)
    add_library(adamant_c_cuda OBJECT include/adamant/c/cuda_device.cu)
    adamant_cuda_program(adamant_c_cuda)
    set_target_properties(adamant_c_cuda PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_VISIBILITY_PRESET hidden)
    target_sources(adamant_c PRIVATE $<TARGET_OBJECTS:adamant_c_cuda>)
    target_link_libraries(adamant_c PRIVATE CUDA::cudart_static)
    target_compile_definitions(adamant_c PRIVATE ADAMANT_C_CUDA)
endif()
