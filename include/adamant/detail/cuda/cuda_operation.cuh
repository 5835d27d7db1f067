// SPDX-License-Identifier: Apache-2.0
// device_scope: sets the current CUDA device. operation: describes enqueued work.
#pragma once

#include <cstdint>
#include <string>

#include <adamant/detail/cuda/gpu_runtime.cuh>

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

using event_handle = cudaEvent_t;

// Sets the calling thread's current device for a scope. If that fails, the next CUDA call returns the error.
class device_scope {
public:
    explicit device_scope(int ordinal) noexcept
    {
        changed_ = cudaGetDevice(&previous_) == cudaSuccess && previous_ != ordinal;
        if (changed_)
            (void)cudaSetDevice(ordinal);
    }
    ~device_scope()
    {
        if (changed_)
            (void)cudaSetDevice(previous_);
    }
    device_scope(device_scope const&) = delete;
    device_scope& operator=(device_scope const&) = delete;

private:
    int previous_ = 0;
    bool changed_;
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
