// SPDX-License-Identifier: Apache-2.0
// A CUDA device as adamant::device. Opt-in: include it in a .cu file that nvcc compiles; no other header includes it.
// Such a file makes the device and passes it on as std::shared_ptr<adamant::device>. Executors, steps and optimizers
// belong in C++ files, because nvcc does not compile the CPU's kernels as they must be. Both kinds of file need the
// same flags for threads (nvcc: -Xcompiler -fopenmp), or their types do not link.
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
#include <adamant/detail/cuda/cuda_part.cuh>
#include <adamant/detail/cuda/gpu_columns.cuh>
#include <adamant/detail/cuda/gpu_scores.cuh>

ADAMANT_BEGIN_NAMESPACE

// One GPU, with three streams of its own, which no other stream waits for. adamant::device says what its functions do;
// all are thread-safe. After every call the calling thread's current device is as before.
//
// A copy of memory that is not pinned (see pinned()) returns when CUDA has read or written it, which for a copy down is
// when the lane has reached it. Work that CUDA has been given counts as begun: reset() waits for it.
//
// The destructor, and that of a part, wait some seconds for enqueued work.
class cuda_device final : public device {
public:
    // CUDA's number for the device, from 0, as CUDA_VISIBLE_DEVICES leaves them. Throws unavailable where there is none
    // of that number, it is older than compute capability 7.0, or the program was compiled for other devices or with
    // flags that change results (--use_fast_math, --ftz=true); device_error where it fails.
    explicit cuda_device(int ordinal = 0) : cuda_device(found_device(ordinal)) {}

    [[nodiscard]] std::string name() const override { return lanes_.name(); }
    [[nodiscard]] device_memory memory() const override { return detail::cuda::memory_of(lanes_); }
    [[nodiscard]] int ordinal() const noexcept { return lanes_.ordinal(); }

    [[nodiscard]] device_ptr allocate(std::size_t bytes) override { return detail::cuda::allocate(lanes_, bytes); }
    void release(device_ptr memory) noexcept override { detail::cuda::release(lanes_, memory); }

    void copy_up(device_ptr to, void const* from, std::size_t bytes) override
    {
        using detail::cuda::operation;
        if (bytes != 0)
            lanes_.enqueue(device_lane::up, {operation::copy_up, {}, bytes, bytes}, [=](cudaStream_t stream) {
                return cudaMemcpyAsync(detail::cuda::address_of(to), from, bytes, cudaMemcpyHostToDevice, stream);
            });
    }
    void copy_down(void* to, device_ptr from, std::size_t bytes) override
    {
        using detail::cuda::operation;
        if (bytes != 0)
            lanes_.enqueue(device_lane::down, {operation::copy_down, {}, bytes, bytes}, [=](cudaStream_t stream) {
                return cudaMemcpyAsync(to, detail::cuda::address_of(from), bytes, cudaMemcpyDeviceToHost, stream);
            });
    }
    void gather_columns(column_copy const& what) override { detail::cuda::copy_columns(lanes_, what, true); }
    void scatter_columns(column_copy const& what) override { detail::cuda::copy_columns(lanes_, what, false); }
    void find_largest(column_scoring const& what) override { detail::cuda::find_largest(lanes_, what); }
    void score_columns(column_scoring const& what) override { detail::cuda::score_columns(lanes_, what); }
    void call(device_lane lane, std::function<void()> function) override { lanes_.call(lane, std::move(function)); }

    [[nodiscard]] device_mark mark(device_lane lane) override { return lanes_.mark(lane); }
    void follow(device_lane lane, device_mark before) override { lanes_.follow(lane, before); }
    // Work that is enqueued in `lane` from now on waits for the caller's event, on any stream of this device. Have the
    // lanes work and down follow it before submit() of a shard whose gradient is still being made there.
    void follow(device_lane lane, cudaEvent_t before) { lanes_.follow(lane, before); }
    [[nodiscard]] bool wait_until(device_mark until, clock::time_point deadline) override
    {
        return lanes_.wait_until(until, deadline);
    }
    [[nodiscard]] bool reset(clock::time_point deadline) noexcept override { return lanes_.reset(deadline); }

    [[nodiscard]] std::shared_ptr<std::byte> pinned(std::size_t bytes) override
    {
        return detail::cuda::pinned(lanes_, bytes);
    }

    [[nodiscard]] std::unique_ptr<device_part> make_part(std::vector<device_piece> pieces, bool with_records) override
    {
        return std::make_unique<detail::cuda::part>(lanes_, std::move(pieces), with_records);
    }
    [[nodiscard]] std::size_t part_bytes(std::span<device_piece const> pieces,
                                         bool with_records) const noexcept override
    {
        return detail::cuda::part_layout(pieces, with_records).end;
    }

    [[nodiscard]] device_usage usage() const override { return lanes_.usage(); }

private:
    struct found {
        int ordinal;
        int capability; // 90 is 9.0
        std::string name;
    };
    explicit cuda_device(found const& which) : lanes_(which.ordinal, which.name)
    {
        detail::cuda::check_arithmetic(lanes_, which.capability);
    }

    [[nodiscard]] static found found_device(int ordinal)
    {
        std::string const asked = detail::text_of({"adamant: CUDA device ", ordinal, " is asked for, but "});
        int count = 0;
        if (cudaError_t const error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
            (void)cudaGetLastError();
            throw unavailable(asked + "there is none: CUDA says '" +
                              cudaGetErrorString(error != cudaSuccess ? error : cudaErrorNoDevice) +
                              "'; see whether nvidia-smi finds one, or leave all of the work to the CPU");
        }
        std::string others;
        for (int i = 0; i < count; ++i) {
            cudaDeviceProp about;
            if (cudaError_t const error = cudaGetDeviceProperties(&about, i); error != cudaSuccess) {
                (void)cudaGetLastError();
                detail::throw_device_error({"CUDA does not say what device ", i, " is: ", cudaGetErrorString(error)});
            }
            std::string const name = detail::text_of({about.name, " (cuda:", i, ")"});
            if (i == ordinal && about.major < 7)
                throw unavailable(detail::text_of({asked, name, " has compute capability ", about.major, ".",
                                                   about.minor, ", and adamant needs 7.0 or newer (Volta, of 2017)"}));
            if (i == ordinal)
                return {ordinal, about.major * 10 + about.minor, name};
            others += (i == 0 ? "" : ", ") + name;
        }
        throw unavailable(asked + "there " + (count == 1 ? "is only " : "are only ") + others +
                          "; give one of these numbers (CUDA_VISIBLE_DEVICES decides which there are)");
    }

    detail::cuda::lanes lanes_;
};

ADAMANT_END_NAMESPACE
