// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/emulated_device.hpp>.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <adamant/emulated_device.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/device/emulated_columns.hpp>
#include <adamant/detail/device/emulated_part.hpp>
#include <adamant/detail/kernels/column_kernels.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL emulated_device::emulated_device(emulation_options options) : options_(std::move(options))
{
    detail::default_mode_scope const mode;
    for (double const rate : {options_.work_bytes_per_s, options_.up_bytes_per_s, options_.down_bytes_per_s})
        if (!(rate > 0))
            detail::throw_invalid_argument(
                {"a rate of '", options_.name, "' is ", rate, " bytes per second, but must be above 0"});
    if (!(options_.latency_s >= 0))
        detail::throw_invalid_argument(
            {"the latency of '", options_.name, "' is ", options_.latency_s, " s, but must be 0 or above"});
    for (std::size_t i = 0; i < device_streams; ++i)
        try {
            (*streams_)[i].thread = std::thread([this, i] { serve((*streams_)[i]); });
        } catch (...) {
            stop();
            throw;
        }
}

ADAMANT_DECL emulated_device::~emulated_device()
{
    if (streams_.in_this_process())
        stop();
}

ADAMANT_DECL device_memory emulated_device::memory() const
{
    auto const lock = lock_state();
    return {options_.memory_bytes, options_.memory_bytes - used_bytes_};
}

ADAMANT_DECL device_ptr emulated_device::allocate(std::size_t bytes)
{
    if (bytes == 0)
        return {};
    auto const lock = lock_state();
    std::size_t const free_bytes = options_.memory_bytes - used_bytes_;
    if (next_fault(fault_of(device_operation::allocate)) != fault::none)
        detail::throw_device_error({options_.name, " failed to allocate ", bytes, " bytes: an injected fault"});
    std::size_t const rounded = (bytes + alignment - 1) / alignment * alignment;
    if (bytes > free_bytes || rounded > free_bytes)
        detail::throw_unavailable({"cannot allocate ", bytes, " bytes on ", options_.name, ": only ", free_bytes,
                                   " of ", options_.memory_bytes,
                                   " bytes are free. Set a larger ratio to keep more on the CPU."});
    void* const host_memory = std::aligned_alloc(alignment, rounded);
    if (host_memory == nullptr)
        detail::throw_unavailable({"cannot allocate ", bytes, " bytes on ", options_.name,
                                   ": it is emulated in host memory, and too little host memory is free."});
    std::unique_ptr<void, void (*)(void*)> owner(host_memory, std::free);
    std::memset(host_memory, 0xa5, rounded); // not zeros, so that no caller relies on zeros; touches the pages
    blocks_->emplace(next_address_, block{static_cast<std::byte*>(host_memory), rounded});
    (void)owner.release();
    used_bytes_ += rounded;
    device_ptr const result{next_address_};
    next_address_ += rounded + alignment; // an unused gap, so that overruns hit no block
    return result;
}

ADAMANT_DECL void emulated_device::release(device_ptr memory) noexcept
{
    if (!streams_.in_this_process())
        return;
    auto const lock = lock_state();
    auto const match = blocks_->find(memory.address);
    if (match == blocks_->end())
        return;
    std::free(match->second.real);
    used_bytes_ -= match->second.bytes;
    blocks_->erase(match);
}

ADAMANT_DECL void emulated_device::copy_up(device_ptr dst, void const* src, std::size_t bytes)
{
    if (bytes != 0)
        enqueue(device_stream::up, device_operation::copy_up, bytes,
                detail::text_of({"a copy of ", bytes, " bytes up"}),
                [=, this] { std::memcpy(real(dst, bytes), src, bytes); });
}

ADAMANT_DECL void emulated_device::copy_down(void* dst, device_ptr src, std::size_t bytes)
{
    if (bytes != 0)
        enqueue(device_stream::down, device_operation::copy_down, bytes,
                detail::text_of({"a copy of ", bytes, " bytes down"}),
                [=, this] { std::memcpy(dst, real(src, bytes), bytes); });
}

ADAMANT_DECL void emulated_device::gather_columns(column_copy const& copy)
{
    copy_columns(copy, true);
}

ADAMANT_DECL void emulated_device::scatter_columns(column_copy const& copy)
{
    copy_columns(copy, false);
}

ADAMANT_DECL void emulated_device::copy_columns(column_copy const& copy, bool gathers)
{
    if (copy.bytes() == 0)
        return;
    enqueue(device_stream::work, device_operation::work, copy.bytes(),
            detail::text_of({gathers ? "gathering " : "scattering ", copy.count, " columns"}), [=, this] {
                std::size_t const size = copy.elem_bytes;
                std::size_t const last = (copy.indexed ? copy.columns : copy.count) - 1;
                std::vector<std::uint32_t> list(copy.count);
                std::memcpy(list.data(), real(copy.list, copy.count * sizeof list[0]), copy.count * sizeof list[0]);
                detail::copy_listed_columns(copy, list, real(copy.by_rows, copy.rows * copy.columns * size),
                                            real(copy.by_columns, (last * copy.pitch + copy.rows) * size), gathers);
            });
}

ADAMANT_DECL void emulated_device::find_largest(column_scoring const& scoring)
{
    if (scoring.bytes() == 0)
        return;
    detail::column_kernels const run = detail::column_kernels_for(scoring.type, best_available_isa(),
                                                                  column_score::magnitude); // same bits in any tier
    enqueue(
        device_stream::work, device_operation::work, scoring.bytes(),
        detail::text_of({"looking for the largest of ", detail::counted(scoring.rows * scoring.columns, "gradient")}),
        [=, this] {
            std::size_t const n = scoring.rows * scoring.columns;
            std::size_t const pieces = scoring.largest_pieces();
            std::byte const* const grad = real(scoring.grad, scoring.bytes());
            std::byte* const result = real(scoring.result, pieces * sizeof(std::uint32_t));
            for (std::size_t k = 0; k < pieces; ++k) {
                std::uint32_t const bits =
                    detail::largest_finite_bits(run, grad, scoring.type, k * column_scoring::piece_elems,
                                                std::min(n, (k + 1) * column_scoring::piece_elems));
                std::memcpy(result + k * sizeof bits, &bits, sizeof bits);
            }
        });
}

ADAMANT_DECL void emulated_device::score_columns(column_scoring const& scoring)
{
    if (scoring.bytes() == 0)
        return;
    detail::column_kernels const run = detail::column_kernels_for(scoring.type, best_available_isa(), scoring.kind);
    enqueue(device_stream::work, device_operation::work, scoring.bytes(),
            detail::text_of({"scoring ", detail::counted(scoring.columns, "column")}), [=, this] {
                constexpr std::size_t strip = 2048;
                std::size_t const row_bytes = scoring.columns * size_bytes(scoring.type);
                std::byte const* const grad = real(scoring.grad, scoring.bytes());
                std::byte* result = real(scoring.result, scoring.scores() * sizeof(std::uint32_t));
                for (std::size_t row = 0; row < scoring.rows; row += column_score_rows)
                    for (std::size_t first = 0; first < scoring.columns; first += strip) {
                        std::size_t const n = std::min(strip, scoring.columns - first);
                        alignas(64) std::uint32_t sums[strip];
                        detail::score_piece(run, grad + row * row_bytes + first * size_bytes(scoring.type), row_bytes,
                                            std::min(column_score_rows, scoring.rows - row), n, scoring.scale, sums);
                        std::memcpy(result, sums, n * sizeof sums[0]);
                        result += n * sizeof sums[0];
                    }
            });
}

ADAMANT_DECL void emulated_device::call(device_stream stream, std::function<void()> function)
{
    push(stream, {.run = std::move(function)});
}

ADAMANT_DECL device_event emulated_device::record_event(device_stream stream)
{
    auto const lock = lock_state();
    return {stream, state_of(stream).enqueued};
}

ADAMANT_DECL void emulated_device::wait_event(device_stream stream, device_event event)
{
    push(stream, {.after = event, .is_wait = true});
}

ADAMANT_DECL bool emulated_device::wait_until(device_event event, clock::time_point deadline)
{
    auto lock = lock_state();
    auto const is_over = [&] { return !error_->empty() || state_of(event.stream).completed >= event.number; };
    if (deadline == clock::time_point::max())
        changed_->wait(lock, is_over);
    else
        changed_->wait_until(lock, deadline, is_over);
    if (!error_->empty())
        throw device_error(*error_);
    return state_of(event.stream).completed >= event.number;
}

ADAMANT_DECL bool emulated_device::reset_streams(clock::time_point deadline) noexcept
{
    if (!streams_.in_this_process())
        return false;
    auto lock = lock_state();
    ++generation_;
    changed_->notify_all();
    bool const idle = changed_->wait_until(lock, deadline, [this] { return is_idle(); });
    if (idle)
        error_->clear();
    changed_->wait(lock, [this] { return running_ == 0; }); // no operation touches the caller's memory afterwards
    return idle;
}

ADAMANT_DECL std::shared_ptr<std::byte> emulated_device::pinned(std::size_t bytes)
{
    std::size_t const rounded = (std::max<std::size_t>(bytes, 1) + 4095) / 4096 * 4096;
    void* const memory = std::aligned_alloc(4096, rounded);
    if (memory == nullptr)
        detail::throw_unavailable(
            {"cannot allocate ", bytes, " bytes of pinned memory: too little host memory is free."});
    std::memset(memory, 0, rounded); // pinned pages are resident
    return {static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); }};
}

ADAMANT_DECL device_usage emulated_device::usage() const
{
    auto const lock = lock_state();
    return usage_;
}

ADAMANT_DECL void emulated_device::fail(device_operation kind, std::size_t after)
{
    set_fault(kind, {after, fault::fails});
}

ADAMANT_DECL void emulated_device::hang(device_operation kind, std::size_t after)
{
    set_fault(kind, {after, fault::hangs});
}

ADAMANT_DECL void emulated_device::resume()
{
    auto const lock = lock_state();
    for (fault& f : faults_)
        f = {};
    hung_ = false;
    changed_->notify_all();
}

ADAMANT_DECL std::byte* emulated_device::real(device_ptr pointer, std::size_t bytes) const
{
    auto const lock = lock_state();
    if (options_.shares_host_memory && pointer.address < first_address)
        return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(pointer.address));
    if (auto const next_block = blocks_->upper_bound(pointer.address); next_block != blocks_->begin()) {
        auto const& [begin, memory] = *std::prev(next_block);
        std::size_t const offset = pointer.address - begin;
        if (offset <= memory.bytes && bytes <= memory.bytes - offset)
            return memory.real + offset;
    }
    detail::throw_device_error({"cannot access ", bytes, " bytes on ", options_.name, ": they are not allocated."});
}

ADAMANT_DECL std::unique_lock<std::mutex> emulated_device::lock_state() const
{
    detail::require_process(streams_.process(), options_.name);
    return std::unique_lock(mutex_);
}

ADAMANT_DECL bool emulated_device::is_idle() const noexcept
{
    return std::all_of(streams_->begin(), streams_->end(),
                       [](stream_state const& s) { return s.completed == s.enqueued; });
}

ADAMANT_DECL void emulated_device::drain() noexcept
{
    if (!streams_.in_this_process())
        return;
    auto lock = lock_state();
    changed_->wait(lock, [this] { return is_idle() || (hung_ && running_ == 0); });
    if (!is_idle()) {
        ++generation_;
        changed_->notify_all();
    }
}

ADAMANT_DECL emulated_device::stream_state& emulated_device::state_of(device_stream stream) noexcept
{
    return (*streams_)[static_cast<std::size_t>(stream)];
}

ADAMANT_DECL emulated_device::fault& emulated_device::fault_of(device_operation kind) noexcept
{
    return faults_[static_cast<std::size_t>(kind)];
}

ADAMANT_DECL void emulated_device::set_fault(device_operation kind, fault f)
{
    auto const lock = lock_state();
    fault_of(kind) = f;
}

ADAMANT_DECL int emulated_device::next_fault(fault& f) noexcept
{
    if (f.kind == fault::none || f.after-- != 0)
        return fault::none;
    return std::exchange(f, fault{}).kind;
}

ADAMANT_DECL double emulated_device::rate(device_stream stream) const noexcept
{
    return stream == device_stream::work ? options_.work_bytes_per_s
           : stream == device_stream::up ? options_.up_bytes_per_s
                                         : options_.down_bytes_per_s;
}

ADAMANT_DECL void emulated_device::enqueue(device_stream stream, device_operation kind, std::size_t bytes,
                                           std::string description, std::function<void()> run)
{
    push(
        stream,
        {.run = std::move(run), .is_timed = true, .kind = kind, .bytes = bytes, .description = std::move(description)});
}

ADAMANT_DECL void emulated_device::push(device_stream stream, operation op)
{
    auto const lock = lock_state();
    op.generation = generation_;
    state_of(stream).queue.push_back(std::move(op));
    ++state_of(stream).enqueued;
    changed_->notify_all();
}

ADAMANT_DECL void emulated_device::stop() noexcept
{
    {
        std::lock_guard const lock(mutex_);
        stopping_ = true;
        hung_ = false;
        ++generation_;
        changed_->notify_all();
    }
    for (stream_state& stream : *streams_)
        if (stream.thread.joinable())
            stream.thread.join();
    for (auto const& [address, memory] : *blocks_)
        std::free(memory.real);
}

ADAMANT_DECL void emulated_device::serve(stream_state& stream)
{
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_->wait(lock, [&] { return stopping_ || !stream.queue.empty(); });
        if (stopping_)
            return;
        operation op = std::move(stream.queue.front());
        stream.queue.pop_front();
        if (op.is_wait)
            changed_->wait(lock,
                           [&] { return is_dropped(op) || state_of(op.after.stream).completed >= op.after.number; });
        else
            perform(stream, op, lock);
        op.run = {};
        ++stream.completed;
        changed_->notify_all();
    }
}

ADAMANT_DECL bool emulated_device::is_dropped(operation const& op) const noexcept
{
    return stopping_ || op.generation != generation_ || !error_->empty();
}

ADAMANT_DECL void emulated_device::perform(stream_state& stream, operation& op, std::unique_lock<std::mutex>& lock)
{
    if (is_dropped(op))
        return;
    if (!op.is_timed) {
        ++running_;
        lock.unlock();
        op.run();
        lock.lock();
        --running_;
        return;
    }
    int const injected = next_fault(fault_of(op.kind));
    if (injected == fault::fails) {
        *error_ = detail::text_of({"adamant: ", options_.name, " failed at ", op.description, ": an injected fault"});
        return;
    }
    if (injected == fault::hangs) {
        hung_ = true;
        changed_->notify_all();
        changed_->wait(lock, [this] { return !hung_; });
        if (is_dropped(op))
            return;
    }
    ++running_;
    lock.unlock();
    auto const begin = clock::now();
    std::string failure;
    try {
        op.run();
    } catch (std::exception const& error) {
        failure = error.what();
    }
    auto const stream_number = static_cast<device_stream>(&stream - streams_->data());
    constexpr double never_s = 1e9; // which the clock's unit still holds
    double const min_duration_s =
        std::min(options_.latency_s + static_cast<double>(op.bytes) / rate(stream_number), never_s);
    // Relative to the end of the stream's previous operation, so that oversleeping does not accumulate.
    auto const start = std::max(stream.free_at, begin - std::chrono::milliseconds(1));
    auto const until =
        start + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(min_duration_s));
    std::this_thread::sleep_until(until);
    auto const end = clock::now();
    stream.free_at = std::max(until, begin);
    lock.lock();
    --running_;
    double const duration_s = std::chrono::duration<double>(end - begin).count();
    usage_.busy_s[static_cast<std::size_t>(stream_number)] +=
        std::max(std::min(duration_s, min_duration_s * 1.5), min_duration_s == 0 ? duration_s : min_duration_s);
    usage_.bytes[static_cast<std::size_t>(stream_number)] += op.bytes;
    if (!failure.empty() && error_->empty())
        *error_ = failure;
}

ADAMANT_END_NAMESPACE
