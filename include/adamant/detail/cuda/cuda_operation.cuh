// SPDX-License-Identifier: Apache-2.0
// device_scope: makes a CUDA device current. operation: describes enqueued work.
#pragma once

#include <cstdint>
#include <string>

#include <adamant/detail/cuda/gpu_runtime.cuh>

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

using event_handle = cudaEvent_t;

#if defined(__HIP__)
using current_context = int;
[[nodiscard]] inline bool can_restore_contexts() noexcept
{
    return true;
}
[[nodiscard]] inline current_context get_current() noexcept
{
    int ordinal = 0;
    (void)cudaGetDevice(&ordinal);
    return ordinal;
}
inline void set_current(current_context ordinal) noexcept
{
    (void)cudaSetDevice(ordinal);
}
#else
// The driver's context, because restoring a device by its number would create a context of hundreds of megabytes if the
// thread has not used that device, and would not restore a context other than the device's primary one.
using current_context = CUcontext;
template <class Function>
[[nodiscard]] Function* driver_function(char const* name) noexcept
{
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t const error = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
#else
    cudaError_t const error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Function*>(function)
                                                                        : nullptr;
}
struct driver_functions {
    CUresult (*get_current)(CUcontext*) = driver_function<CUresult(CUcontext*)>("cuCtxGetCurrent");
    CUresult (*set_current)(CUcontext) = driver_function<CUresult(CUcontext)>("cuCtxSetCurrent");
};
[[nodiscard]] inline driver_functions const& driver() noexcept
{
    static driver_functions const functions;
    return functions;
}
[[nodiscard]] inline bool can_restore_contexts() noexcept
{
    return driver().get_current != nullptr && driver().set_current != nullptr;
}
// Requires can_restore_contexts(), as set_current() does.
[[nodiscard]] inline current_context get_current() noexcept
{
    current_context context = nullptr;
    return driver().get_current(&context) == CUDA_SUCCESS ? context : nullptr;
}
inline void set_current(current_context context) noexcept
{
    (void)driver().set_current(context);
}
#endif

// Makes a device current for the calling thread, and allows its calls while another thread captures a graph. The
// destructor restores the previous context and capture mode. Requires can_restore_contexts().
class device_scope {
public:
    explicit device_scope(int ordinal) noexcept : previous_(get_current()), error_(cudaSetDevice(ordinal))
    {
        if (error_ == cudaSuccess)
            exchanged_ = exchange_capture_mode();
        else
            (void)cudaGetLastError();
    }
    ~device_scope()
    {
        if (exchanged_)
            (void)exchange_capture_mode();
        set_current(previous_);
    }
    device_scope(device_scope const&) = delete;
    device_scope& operator=(device_scope const&) = delete;

    // The error of making the device current, which may be one of earlier work. If it is not cudaSuccess, make no other
    // call: it would use another device.
    [[nodiscard]] cudaError_t error() const noexcept { return error_; }

private:
    [[nodiscard]] bool exchange_capture_mode() noexcept
    {
        bool const exchanged = cudaThreadExchangeStreamCaptureMode(&capture_mode_) == cudaSuccess;
        if (!exchanged)
            (void)cudaGetLastError();
        return exchanged;
    }

    current_context previous_;
    cudaError_t error_;
    bool exchanged_ = false;
    cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;
};

// An enqueued operation, for error messages, and the bytes that it moves.
struct operation {
    enum kind : std::uint8_t {
        nothing,
        copy_up,
        copy_down,
        pass,
        accumulate,
        round_weights,
        columns,
        largest,
        scores,
        fetch,
        describe,
        check,
        call
    };
    kind type = nothing;
    block_pass step_pass = block_pass::measure;
    std::uint64_t count = 0; // bytes, or pieces
    std::uint64_t bytes = 0;

    [[nodiscard]] std::string text() const
    {
        std::string const n = std::to_string(count);
        std::string const pieces = text_of({" over ", n, count == 1 ? " piece" : " pieces"});
        switch (type) {
        case copy_up: return text_of({"copy of ", n, " bytes up"});
        case copy_down: return text_of({"copy of ", n, " bytes down"});
        case pass: return std::string("pass ") + name(step_pass) + pieces;
        case accumulate: return "accumulation of piece " + n;
        case columns: return text_of({"copy of ", counted(count, "column")});
        case largest: return text_of({"look for the largest of ", counted(count, "gradient")});
        case scores: return text_of({"scores of ", counted(count, "column")});
        case round_weights: return "rounding of weights" + pieces;
        case fetch: return text_of({"fetch of the results of ", counted(count, "block")});
        case describe: return "description of piece " + n;
        case check: return "check of its arithmetic";
        case call: return "call of a function on the host";
        case nothing: break;
        }
        return "wait";
    }
};

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
