// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/emulated_device.hpp.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <adamant/emulated_device.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/device/emulated_part.hpp>
#include <adamant/detail/kernels/column_kernels.hpp>
#include <adamant/detail/kernels/transpose.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL emulated_device::emulated_device(emulation_options options) : options_(std::move(options))
{
    detail::default_mode_scope const mode;
    for (double const rate : {options_.work_bytes_per_s, options_.up_bytes_per_s, options_.down_bytes_per_s})
        if (!(rate > 0))
            detail::throw_invalid_argument(
                {"a rate of '", options_.name, "' is ", rate, " bytes a second, but must be above 0"});
    if (!(options_.latency_s >= 0))
        detail::throw_invalid_argument({"the latency of '", options_.name, "' is below 0"});
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
    auto const lock = locked();
    return {options_.memory_bytes, options_.memory_bytes - used_bytes_};
}

ADAMANT_DECL device_ptr emulated_device::allocate(std::size_t bytes)
{
    if (bytes == 0)
        return {};
    auto const lock = locked();
    std::size_t const room = options_.memory_bytes - used_bytes_;
    if (due(fault_of(device_operation::allocate)) != fault::none)
        detail::throw_device_error({options_.name, " failed to allocate ", bytes, " bytes: an injected fault"});
    std::size_t const rounded = (bytes + alignment - 1) / alignment * alignment;
    if (bytes > room || rounded > room)
        detail::throw_unavailable({options_.name, " is asked for ", bytes, " bytes, but has only ", room, " of ",
                                   options_.memory_bytes,
                                   " left; set a larger ratio, so that more stays with the CPU"});
    void* const real = std::aligned_alloc(alignment, rounded);
    if (real == nullptr)
        detail::throw_unavailable({options_.name, " is imitated in host memory, which has no ", bytes, " bytes left"});
    std::unique_ptr<void, void (*)(void*)> own(real, std::free);
    std::memset(real, 0xa5, rounded); // so that no caller relies on zeros, and the pages exist
    blocks_->emplace(next_address_, block{static_cast<std::byte*>(real), rounded});
    (void)own.release();
    used_bytes_ += rounded;
    device_ptr const result{next_address_};
    next_address_ += rounded + alignment; // a gap, in which nothing lies
    return result;
}

ADAMANT_DECL void emulated_device::release(device_ptr memory) noexcept
{
    if (!streams_.in_this_process())
        return;
    auto const lock = locked();
    auto const at = blocks_->find(memory.address);
    if (at == blocks_->end())
        return;
    std::free(at->second.real);
    used_bytes_ -= at->second.bytes;
    blocks_->erase(at);
}

ADAMANT_DECL void emulated_device::copy_up(device_ptr to, void const* from, std::size_t bytes)
{
    if (bytes != 0)
        enqueue(device_stream::up, device_operation::copy_up, bytes,
                detail::text_of({"a copy of ", bytes, " bytes up"}),
                [=, this] { std::memcpy(real(to, bytes), from, bytes); });
}

ADAMANT_DECL void emulated_device::copy_down(void* to, device_ptr from, std::size_t bytes)
{
    if (bytes != 0)
        enqueue(device_stream::down, device_operation::copy_down, bytes,
                detail::text_of({"a copy of ", bytes, " bytes down"}),
                [=, this] { std::memcpy(to, real(from, bytes), bytes); });
}

namespace detail {

// In tiles that stay in the first cache. Columns that lie beside one another are transposed by vectors.
template <class Bits>
void copy_columns_as(column_copy const& what, std::vector<std::uint32_t> const& list, std::byte* by_rows,
                     std::byte* by_columns, bool gathers)
{
    constexpr std::size_t tile = 64;
    constexpr std::size_t few = 8; // columns beside one another
    constexpr std::size_t pitch = (tile + 16) * sizeof(Bits);
    alignas(64) std::byte transposed[tile * pitch]; // by columns where they are gathered, else by rows
    std::size_t const row_bytes = what.columns * sizeof(Bits);
    std::size_t const column_bytes = what.pitch * sizeof(Bits);
    auto const run_end = [&](std::size_t first) {
        std::size_t end = first + 1;
        while (end < std::min(list.size(), first + tile) && list[end] == list[end - 1] + 1)
            ++end;
        return end;
    };
    auto const column_at = [&](std::size_t i, std::size_t row) {
        return by_columns + (what.own_places ? list[i] : i) * column_bytes + row * sizeof(Bits);
    };
    for (std::size_t row = 0; row < what.rows; row += tile)
        for (std::size_t first = 0, end = 0; first < list.size(); first = end) {
            std::size_t const some = std::min(tile, what.rows - row);
            std::byte* const rows_at = by_rows + row * row_bytes;
            end = run_end(first);
            if (end - first >= few) {
                std::byte* const run_at = rows_at + list[first] * sizeof(Bits);
                if (gathers) {
                    kernel::transpose<Bits>(run_at, row_bytes, transposed, pitch, some, end - first, 0);
                    for (std::size_t i = first; i < end; ++i)
                        std::memcpy(column_at(i, row), transposed + (i - first) * pitch, some * sizeof(Bits));
                } else {
                    kernel::transpose<Bits>(column_at(first, row), column_bytes, transposed, pitch, end - first, some,
                                            0);
                    for (std::size_t r = 0; r < some; ++r)
                        std::memcpy(run_at + r * row_bytes, transposed + r * pitch, (end - first) * sizeof(Bits));
                }
                continue;
            }
            while (end < std::min(list.size(), first + tile) && run_end(end) - end < few)
                ++end;
            for (std::size_t i = first; i < end && !gathers; ++i)
                std::memcpy(transposed + (i - first) * pitch, column_at(i, row), some * sizeof(Bits));
            for (std::size_t r = 0; r < some; ++r)
                for (std::size_t i = first; i < end; ++i) {
                    std::byte* const in_row = rows_at + r * row_bytes + list[i] * sizeof(Bits);
                    std::byte* const in_tile = transposed + (i - first) * pitch + r * sizeof(Bits);
                    std::memcpy(gathers ? in_tile : in_row, gathers ? in_row : in_tile, sizeof(Bits));
                }
            for (std::size_t i = first; i < end && gathers; ++i)
                std::memcpy(column_at(i, row), transposed + (i - first) * pitch, some * sizeof(Bits));
        }
}
inline void copy_listed_columns(column_copy const& what, std::vector<std::uint32_t> const& list, std::byte* by_rows,
                                std::byte* by_columns, bool gathers)
{
    if (what.elem_bytes == sizeof(std::uint16_t))
        copy_columns_as<std::uint16_t>(what, list, by_rows, by_columns, gathers);
    else
        copy_columns_as<std::uint32_t>(what, list, by_rows, by_columns, gathers);
}

} // namespace detail

ADAMANT_DECL void emulated_device::gather_columns(column_copy const& what)
{
    copy_columns(what, true);
}

ADAMANT_DECL void emulated_device::scatter_columns(column_copy const& what)
{
    copy_columns(what, false);
}

ADAMANT_DECL void emulated_device::copy_columns(column_copy const& what, bool gathers)
{
    if (what.bytes() == 0)
        return;
    enqueue(device_stream::work, device_operation::work, what.bytes(),
            detail::text_of({gathers ? "gathering " : "scattering ", what.count, " columns"}), [=, this] {
                std::size_t const each = what.elem_bytes;
                std::size_t const last = (what.own_places ? what.columns : what.count) - 1;
                std::vector<std::uint32_t> list(what.count);
                std::memcpy(list.data(), real(what.list, what.count * sizeof list[0]), what.count * sizeof list[0]);
                detail::copy_listed_columns(what, list, real(what.by_rows, what.rows * what.columns * each),
                                            real(what.by_columns, (last * what.pitch + what.rows) * each), gathers);
            });
}

ADAMANT_DECL void emulated_device::find_largest(column_scoring const& what)
{
    if (what.bytes() == 0)
        return;
    detail::column_kernels const run =
        detail::column_kernels_for(what.type, best_available_isa(), column_score::magnitude); // no bit depends on it
    enqueue(device_stream::work, device_operation::work, what.bytes(),
            detail::text_of({"looking for the largest of ", what.rows * what.columns, " gradients"}), [=, this] {
                std::size_t const n = what.rows * what.columns;
                std::size_t const pieces = what.largest_pieces();
                std::byte const* const grad = real(what.grad, what.bytes());
                std::byte* const result = real(what.result, pieces * sizeof(std::uint32_t));
                for (std::size_t k = 0; k < pieces; ++k) {
                    std::uint32_t const bits =
                        detail::largest_finite_bits(run, grad, what.type, k * column_scoring::piece_elems,
                                                    std::min(n, (k + 1) * column_scoring::piece_elems));
                    std::memcpy(result + k * sizeof bits, &bits, sizeof bits);
                }
            });
}

ADAMANT_DECL void emulated_device::score_columns(column_scoring const& what)
{
    if (what.bytes() == 0)
        return;
    detail::column_kernels const run = detail::column_kernels_for(what.type, best_available_isa(), what.kind);
    enqueue(device_stream::work, device_operation::work, what.bytes(),
            detail::text_of({"scoring ", what.columns, " columns"}), [=, this] {
                constexpr std::size_t strip = 2048;
                std::size_t const row_bytes = what.columns * size_bytes(what.type);
                std::byte const* const grad = real(what.grad, what.bytes());
                std::byte* result = real(what.result, what.scores() * sizeof(std::uint32_t));
                for (std::size_t row = 0; row < what.rows; row += column_score_rows)
                    for (std::size_t first = 0; first < what.columns; first += strip) {
                        std::size_t const n = std::min(strip, what.columns - first);
                        alignas(64) std::uint32_t sums[strip];
                        detail::score_piece(run, grad + row * row_bytes + first * size_bytes(what.type), row_bytes,
                                            std::min(column_score_rows, what.rows - row), n, what.scale, sums);
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
    auto const lock = locked();
    return {stream, of(stream).enqueued};
}

ADAMANT_DECL void emulated_device::wait_event(device_stream stream, device_event before)
{
    push(stream, {.after = before, .waits = true});
}

ADAMANT_DECL bool emulated_device::wait_until(device_event until, clock::time_point deadline)
{
    auto lock = locked();
    auto const over = [&] { return !error_->empty() || of(until.stream).passed >= until.number; };
    if (deadline == clock::time_point::max())
        changed_->wait(lock, over);
    else
        changed_->wait_until(lock, deadline, over);
    if (!error_->empty())
        throw device_error(*error_);
    return of(until.stream).passed >= until.number;
}

ADAMANT_DECL bool emulated_device::reset(clock::time_point deadline) noexcept
{
    if (!streams_.in_this_process())
        return false;
    auto lock = locked();
    ++generation_;
    changed_->notify_all();
    bool const idle = changed_->wait_until(lock, deadline, [this] { return is_idle(); });
    if (idle)
        error_->clear();
    changed_->wait(lock, [this] { return running_ == 0; }); // so that nothing touches the caller's memory any more
    return idle;
}

ADAMANT_DECL std::shared_ptr<std::byte> emulated_device::pinned(std::size_t bytes)
{
    std::size_t const rounded = (std::max<std::size_t>(bytes, 1) + 4095) / 4096 * 4096;
    void* const memory = std::aligned_alloc(4096, rounded);
    if (memory == nullptr)
        detail::throw_unavailable({bytes, " bytes of pinned memory are not available"});
    std::memset(memory, 0, rounded); // pages that are pinned are there
    return {static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); }};
}

ADAMANT_DECL device_usage emulated_device::usage() const
{
    auto const lock = locked();
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
    auto const lock = locked();
    for (fault& f : faults_)
        f = {};
    hung_ = false;
    changed_->notify_all();
}

ADAMANT_DECL std::byte* emulated_device::real(device_ptr at, std::size_t bytes) const
{
    auto const lock = locked();
    auto const after = blocks_->upper_bound(at.address);
    if (after != blocks_->begin()) {
        auto const& [begin, memory] = *std::prev(after);
        if (at.address - begin <= memory.bytes && bytes <= memory.bytes - (at.address - begin))
            return memory.real + (at.address - begin);
    }
    detail::throw_device_error({options_.name, " was told to use ", bytes, " bytes that it has not allocated"});
}

ADAMANT_DECL std::unique_lock<std::mutex> emulated_device::locked() const
{
    detail::require_process(streams_.process(), options_.name);
    return std::unique_lock(mutex_);
}

ADAMANT_DECL bool emulated_device::is_idle() const noexcept
{
    return std::all_of(streams_->begin(), streams_->end(),
                       [](stream_state const& l) { return l.passed == l.enqueued; });
}

ADAMANT_DECL void emulated_device::drain() noexcept
{
    if (!streams_.in_this_process())
        return;
    auto lock = locked();
    changed_->wait(lock, [this] { return is_idle() || (hung_ && running_ == 0); });
    if (!is_idle()) {
        ++generation_;
        changed_->notify_all();
    }
}

ADAMANT_DECL emulated_device::stream_state& emulated_device::of(device_stream stream) noexcept
{
    return (*streams_)[static_cast<std::size_t>(stream)];
}

ADAMANT_DECL emulated_device::fault& emulated_device::fault_of(device_operation kind) noexcept
{
    return faults_[static_cast<std::size_t>(kind)];
}

ADAMANT_DECL void emulated_device::set_fault(device_operation kind, fault f)
{
    auto const lock = locked();
    fault_of(kind) = f;
}

ADAMANT_DECL int emulated_device::due(fault& f) noexcept
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
                                           std::string what, std::function<void()> run)
{
    push(stream, {.run = std::move(run), .costs = true, .kind = kind, .bytes = bytes, .what = std::move(what)});
}

ADAMANT_DECL void emulated_device::push(device_stream stream, operation op)
{
    auto const lock = locked();
    op.generation = generation_;
    of(stream).queue.push_back(std::move(op));
    ++of(stream).enqueued;
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
        if (op.waits)
            changed_->wait(lock, [&] { return dropped(op) || of(op.after.stream).passed >= op.after.number; });
        else
            perform(stream, op, lock);
        op.run = {};
        ++stream.passed;
        changed_->notify_all();
    }
}

ADAMANT_DECL bool emulated_device::dropped(operation const& op) const noexcept
{
    return stopping_ || op.generation != generation_ || !error_->empty();
}

ADAMANT_DECL void emulated_device::perform(stream_state& stream, operation& op, std::unique_lock<std::mutex>& lock)
{
    if (dropped(op))
        return;
    if (!op.costs) {
        ++running_;
        lock.unlock();
        op.run();
        lock.lock();
        --running_;
        return;
    }
    int const fate = due(fault_of(op.kind));
    if (fate == fault::fails) {
        *error_ = detail::text_of({"adamant: ", options_.name, " failed at ", op.what, ": an injected fault"});
        return;
    }
    if (fate == fault::hangs) {
        hung_ = true;
        changed_->notify_all();
        changed_->wait(lock, [this] { return !hung_; });
        if (dropped(op))
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
    double const least = options_.latency_s + static_cast<double>(op.bytes) / rate(stream_number);
    // Counted from when the stream was free, so that sleeping too long now and then does not add up.
    auto const from = std::max(stream.free_at, begin - std::chrono::milliseconds(1));
    auto const until = from + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(least));
    std::this_thread::sleep_until(until);
    auto const end = clock::now();
    stream.free_at = std::max(until, begin);
    lock.lock();
    --running_;
    double const took = std::chrono::duration<double>(end - begin).count();
    usage_.busy_s[static_cast<std::size_t>(stream_number)] +=
        std::max(std::min(took, least * 1.5), least == 0 ? took : least);
    usage_.bytes[static_cast<std::size_t>(stream_number)] += op.bytes;
    if (!failure.empty() && error_->empty())
        *error_ = failure;
}

ADAMANT_END_NAMESPACE
