// SPDX-License-Identifier: Apache-2.0
// A GPU as adamant::device. Opt-in: include it in a .cu file that nvcc compiles, or in a .hip file that hipcc compiles
// for AMD's GPUs; no other header includes it. Such a file makes the device and passes it on as
// std::shared_ptr<adamant::device>. Executors, steps and optimizers belong in C++ files, because nvcc does not compile
// the CPU's kernels as they must be. Both kinds of file need the same flags for threads (nvcc: -Xcompiler -fopenmp,
// hipcc: -fopenmp) and, in a header-only program, the same -m flags, or their types do not link.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/detail/cuda/cuda_check.cuh>
#include <adamant/detail/cuda/cuda_identity.cuh>
#include <adamant/detail/cuda/cuda_part.cuh>
#include <adamant/detail/cuda/gpu_columns.cuh>
#include <adamant/detail/cuda/gpu_scores.cuh>

ADAMANT_BEGIN_NAMESPACE

/// A GPU with three streams of its own, which do not synchronise with other streams. See adamant::device for its
/// functions; all are thread-safe. They restore the calling thread's context, and create none on another device. With
/// CUDA, they may be called while another thread captures a graph.
///
/// A copy of memory that is not pinned (see pinned()) returns when CUDA has read or written it, which for a copy down
/// is when the stream has reached it. Work that was passed to CUDA has begun: reset() waits for it.
///
/// The destructor, and that of a part, wait at most ten seconds for enqueued work. After that, memory leaks instead of
/// being released, because the work may still use it.
class cuda_device final : public device {
public:
    /// Opens a device. ordinal: CUDA's number of the device among those of CUDA_VISIBLE_DEVICES, from 0 (HIP's, of
    /// HIP_VISIBLE_DEVICES). Throws unavailable if there is no such device, if it is older than compute capability 7.0
    /// or gfx900, or if the program was compiled for other devices or with flags that change results (--use_fast_math,
    /// --ftz=true, -ffp-contract=fast); device_error if it fails.
    explicit cuda_device(int ordinal = 0) : cuda_device(detail::cuda::find_device(ordinal)) {}

    [[nodiscard]] std::string name() const override { return streams_.name(); }
    [[nodiscard]] device_memory memory() const override { return detail::cuda::memory_of(streams_); }
    [[nodiscard]] int ordinal() const noexcept { return streams_.ordinal(); }
    /// True if the runtime says that the GPU is integrated and can access pageable memory of the host (`integrated` and
    /// `pageableMemoryAccess`): MI300A, with HSA_XNACK=1.
    [[nodiscard]] bool shares_host_memory() const noexcept override { return shares_host_memory_; }

    [[nodiscard]] device_ptr allocate(std::size_t bytes) override { return detail::cuda::allocate(streams_, bytes); }
    void release(device_ptr memory) noexcept override { detail::cuda::release(streams_, memory); }

    void copy_up(device_ptr dst, void const* src, std::size_t bytes) override
    {
        detail::cuda::copy_up(streams_, dst, src, bytes);
    }
    void copy_down(void* dst, device_ptr src, std::size_t bytes) override
    {
        detail::cuda::copy_down(streams_, dst, src, bytes);
    }
    void gather_columns(column_copy const& copy) override { detail::cuda::copy_columns(streams_, copy, true); }
    void scatter_columns(column_copy const& copy) override { detail::cuda::copy_columns(streams_, copy, false); }
    void find_largest(column_scoring const& scoring) override { detail::cuda::find_largest(streams_, scoring); }
    void score_columns(column_scoring const& scoring) override { detail::cuda::score_columns(streams_, scoring); }
    void call(device_stream stream, std::function<void()> function) override
    {
        streams_.call(stream, std::move(function));
    }

    [[nodiscard]] device_event record_event(device_stream stream) override { return streams_.record_event(stream); }
    void wait_event(device_stream stream, device_event event) override { streams_.wait_event(stream, event); }
    /// Makes work that is enqueued in `stream` from now on wait for the caller's cudaEvent_t (HIP: hipEvent_t), on any
    /// stream of this device. Record the event first: nothing waits for an event that was never recorded. After the
    /// call it may be recorded again or destroyed. Call this for the streams work and down before the function that
    /// submits, accumulates or steps with a gradient that the device still computes.
    void wait_event(device_stream stream, detail::cuda::event_handle event) { streams_.wait_event(stream, event); }
    [[nodiscard]] bool wait_until(device_event event, clock::time_point deadline) override
    {
        return streams_.wait_until(event, deadline);
    }

    [[nodiscard]] std::shared_ptr<std::byte> pinned(std::size_t bytes) override
    {
        return detail::cuda::pinned(streams_, bytes);
    }

    [[nodiscard]] std::unique_ptr<device_part> make_part(std::vector<device_piece> pieces, bool with_records) override
    {
        return std::make_unique<detail::cuda::part>(streams_, std::move(pieces), with_records);
    }
    [[nodiscard]] std::size_t part_bytes(std::span<device_piece const> pieces,
                                         bool with_records) const noexcept override
    {
        return detail::cuda::part_layout(pieces, with_records).end;
    }

    [[nodiscard]] device_usage usage() const override { return streams_.usage(); }

private:
    [[nodiscard]] bool reset_streams(clock::time_point deadline) noexcept override { return streams_.reset(deadline); }

    explicit cuda_device(detail::cuda::device_identity const& identity)
        : streams_(identity.ordinal, identity.name), shares_host_memory_(identity.shares_host_memory)
    {
        detail::cuda::check_arithmetic(streams_, identity);
    }

    detail::cuda::stream_set streams_;
    bool shares_host_memory_;
};
#if defined(__HIP__)
/// The same class in a program that hipcc compiles.
using hip_device = cuda_device;
#endif

ADAMANT_END_NAMESPACE
