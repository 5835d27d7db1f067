// SPDX-License-Identifier: Apache-2.0
// find_device(): a GPU by its number, its name and what errors say about it. The only place where texts of CUDA and HIP
// differ.
#pragma once

#include <string>

#include <adamant/error.hpp>
#include <adamant/detail/cuda/gpu_runtime.cuh>

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

struct device_identity {
    int ordinal;
    std::string name;         // with the ordinal
    std::string architecture; // in errors
    std::string compile_flag; // with which compilers make code for it
    bool shares_host_memory;  // see device
};

#if defined(__HIP__)
inline constexpr char const* runtime_name = "HIP";
inline constexpr char const* runtime_scheme = "hip";
inline constexpr char const* device_finder = "rocminfo";
inline constexpr char const* visible_devices = "HIP_VISIBLE_DEVICES";
inline constexpr char const* inexact_flags =
    "-ffast-math, -ffp-contract=fast, -fgpu-flush-denormals-to-zero or -fno-hip-fp32-correctly-rounded-divide-sqrt";
inline constexpr char const* needed_architecture = "gfx900 or newer (Vega, of 2017)";
[[nodiscard]] inline bool is_supported(cudaDeviceProp const& properties) noexcept
{
    return properties.major >= 9;
}
[[nodiscard]] inline std::string architecture_of(cudaDeviceProp const& properties)
{
    return text_of({"is a ", properties.gcnArchName});
}
[[nodiscard]] inline std::string compile_flag_of(cudaDeviceProp const& properties)
{
    std::string const name = properties.gcnArchName; // with features, as in gfx942:sramecc+:xnack-
    return text_of({"--offload-arch=", name.substr(0, name.find(':')), " (in CMake: CMAKE_HIP_ARCHITECTURES)"});
}
#else
inline constexpr char const* runtime_name = "CUDA";
inline constexpr char const* runtime_scheme = "cuda";
inline constexpr char const* device_finder = "nvidia-smi";
inline constexpr char const* visible_devices = "CUDA_VISIBLE_DEVICES";
inline constexpr char const* inexact_flags = "--use_fast_math, --ftz=true, --prec-div=false or --prec-sqrt=false";
inline constexpr char const* needed_architecture = "7.0 or newer (Volta, of 2017)";
[[nodiscard]] inline bool is_supported(cudaDeviceProp const& properties) noexcept
{
    return properties.major >= 7;
}
[[nodiscard]] inline std::string architecture_of(cudaDeviceProp const& properties)
{
    return text_of({"has compute capability ", properties.major, ".", properties.minor});
}
[[nodiscard]] inline std::string compile_flag_of(cudaDeviceProp const& properties)
{
    return text_of({"-arch=sm_", properties.major * 10 + properties.minor, " (in CMake: CMAKE_CUDA_ARCHITECTURES)"});
}
#endif

// Throws unavailable if there is no such device or it is too old, and device_error if it fails.
[[nodiscard]] inline device_identity find_device(int ordinal)
{
    std::string const refusal = text_of({"adamant: cannot use ", runtime_name, " device ", ordinal, ": "});
    int count = 0;
    if (cudaError_t const error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        throw unavailable(text_of({refusal, "there is none: ", runtime_name, " says '",
                                   cudaGetErrorString(error != cudaSuccess ? error : cudaErrorNoDevice),
                                   "'; check whether ", device_finder, " finds one, or use only the CPU"}));
    }
    std::string names;
    for (int i = 0; i < count; ++i) {
        cudaDeviceProp properties;
        if (cudaError_t const error = cudaGetDeviceProperties(&properties, i); error != cudaSuccess) {
            (void)cudaGetLastError();
            throw_device_error(
                {"cannot read the properties of ", runtime_name, " device ", i, ": ", cudaGetErrorString(error)});
        }
        std::string const name = text_of({properties.name, " (", runtime_scheme, ":", i, ")"});
        if (i == ordinal && !is_supported(properties))
            throw unavailable(text_of(
                {refusal, name, " ", architecture_of(properties), ", and adamant needs ", needed_architecture}));
        if (i == ordinal)
            return {ordinal, name, architecture_of(properties), compile_flag_of(properties),
                    properties.integrated != 0 && properties.pageableMemoryAccess != 0};
        names += (i == 0 ? "" : ", ") + name;
    }
    throw unavailable(text_of({refusal, "there ", count == 1 ? "is only " : "are only ", names,
                               "; give one of these numbers (", visible_devices, " decides which there are)"}));
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
