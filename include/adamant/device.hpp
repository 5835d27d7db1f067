// SPDX-License-Identifier: Apache-2.0
// Interface of a device (GPU), and the placement of shards on CPU and device.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <adamant/formats.hpp>
#include <adamant/detail/numerics/column_score.hpp>
#include <adamant/detail/shard/block_pass.hpp>

// Placement of shards on CPU and device. Plain data.

ADAMANT_BEGIN_NAMESPACE

/// What updates a piece: the CPU, or a device.
enum class backend_kind : std::uint8_t { cpu, device };

/// Elements [begin, begin + elems) of one shard. begin is a multiple of norm_block_elems, so that boundaries
/// of pieces do not change the sums of blocks in the norm.
struct shard_piece {
    std::size_t shard;    ///< index of the shard
    std::size_t begin;    ///< first element of the piece in the shard
    std::size_t elems;    ///< number of elements
    backend_kind backend; ///< where the piece is updated
    /// Compares all members.
    friend bool operator==(shard_piece const&, shard_piece const&) = default;
};

/// Pieces that cover every element of every shard once, in order. Shards without elements have no piece.
struct placement {
    std::vector<shard_piece> pieces; ///< pieces in the order of shards
    std::size_t cpu_elems = 0;       ///< elements that the CPU updates
    std::size_t device_elems = 0;    ///< elements that the device updates
    double ratio_asked = 1;          ///< the ratio that was requested
    /// Whether a memory limit ruled out the requested ratio; the placement is then the nearest allowed one. It stays
    /// false if the limits allow the requested number of elements, and only rule out the boundary (or the set of whole
    /// shards) nearest to that number. The next nearest one is then used; to detect this, compare ratio() with
    /// ratio_asked.
    bool limited = false;
    /// Whether this is the nearest placement to the ratio for the unit, order and limits of the split_request (see
    /// split.hpp). False only for whole shards whose sizes differ so much that the search cannot try all of their sums:
    /// then another placement may be nearer.
    bool nearest = true;

    /// Returns the CPU's share of the elements; 1 without elements.
    [[nodiscard]] double ratio() const noexcept;
    /// Compares all members.
    friend bool operator==(placement const&, placement const&) = default;
};

/// Throws invalid_argument unless the pieces cover each element of shards of these sizes once, in order, divided at
/// multiples of norm_block_elems, and the placement counts them correctly.
void validate(placement const& candidate, std::vector<std::size_t> const& sizes);

namespace detail {

// Call it in the order of pieces. Skips empty pieces.
void append_piece(placement& target, std::size_t shard, std::size_t begin, std::size_t elems, backend_kind kind);

} // namespace detail

// The interface of a device that holds a part of an optimizer's shards: memory, copies in both directions, and the
// passes of a step over blocks. All work is enqueued; waiting reports failures.

/// An address in a device's memory. The host must not dereference it. With CUDA it is the pointer itself.
struct device_ptr {
    std::uint64_t address = 0; ///< address on the device
    /// Whether it points to memory.
    [[nodiscard]] explicit operator bool() const noexcept { return address != 0; }
    /// Address arithmetic in bytes.
    friend device_ptr operator+(device_ptr base, std::size_t bytes) noexcept { return {base.address + bytes}; }
    /// Compares all members.
    friend bool operator==(device_ptr, device_ptr) = default;
};

/// The streams of a device. Each runs its work in order; different streams run concurrently.
enum class device_stream : std::uint8_t {
    work, ///< passes
    up,   ///< copies from the host
    down, ///< copies to the host
};
inline constexpr std::size_t device_streams = 3;
[[nodiscard]] constexpr char const* name(device_stream stream) noexcept
{
    constexpr char const* names[] = {"work", "up", "down"};
    return names[static_cast<std::size_t>(stream)];
}

/// A point in a stream, after all work that was enqueued before it was recorded.
struct device_event {
    device_stream stream = device_stream::work; ///< the stream
    std::uint64_t number = 0;                   ///< position in the stream
};

/// Memory of a device.
struct device_memory {
    std::size_t total_bytes = 0; ///< total size
    std::size_t free_bytes = 0;  ///< free now
};

/// The streams' work since the device was created.
struct device_usage {
    double busy_s[device_streams] = {};       ///< seconds that each stream was busy
    std::uint64_t bytes[device_streams] = {}; ///< bytes copied; for device_stream::work, read and written
};

/// Consecutive elements of a shard on a device, beginning at a multiple of norm_block_elems.
struct device_piece {
    static constexpr std::size_t alignment = 16; ///< bytes, of every array
    /// Arrays by shard_array. weight_out and accumulator may be null.
    device_ptr arrays[6];
    /// For changed weights: null, or changed_bytes(elems) bytes. Each byte has the bits of four
    /// elements: bit j of byte i, j from 0 to 3, belongs to element 4 i + j. A pass
    /// that steps a block sets the bits of the elements whose published weight the step changes, and clears the others.
    device_ptr changed;
    dtype types[6] = {};                  ///< element types by shard_array
    std::size_t elems = 0;                ///< number of elements
    std::size_t group = 0;                ///< parameter group
    param_position position = {};         ///< position of the first element in its param
    shard_format const* format = nullptr; ///< format of the shard, with the host's kernels
    /// Returns the number of norm blocks.
    [[nodiscard]] std::size_t blocks() const noexcept;
    /// Bytes for the changed weights of n elements.
    [[nodiscard]] static constexpr std::size_t changed_bytes(std::size_t n) noexcept { return (n + 3) / 4; }
};

/// The caller's gradient and weights of a shard in device memory, of the shard's size and types.
///
/// For a shard whose gradient is made on the device and whose weights are needed there. The CPU's part is copied
/// through the shard's host arrays, which should be in pinned memory. Without device_arrays, gradients and weights are
/// in host memory.
struct device_arrays {
    device_ptr grad;       ///< the gradient on the device
    device_ptr weight_out; ///< null for a shard without weight_out
};

/// A copy between listed columns of a row-major matrix and a column-major array, both in device memory. The arrays do
/// not overlap, begin at multiples of elem_bytes (`list` of 4), and must live until the stream has finished the copy.
struct column_copy {
    device_ptr by_rows; ///< rows * columns elements
    /// Row r of listed column i is at i * pitch + r, or at list[i] * pitch + r. The array has room for the last row of
    /// column count - 1, or of column columns - 1.
    device_ptr by_columns;
    bool indexed = false;       ///< whether columns are at list[i] * pitch
    device_ptr list;            ///< std::uint32_t: `count` different numbers below `columns`
    std::size_t rows = 0;       ///< rows of the matrix
    std::size_t columns = 0;    ///< columns of the matrix
    std::size_t count = 0;      ///< number of listed columns
    std::size_t pitch = 0;      ///< elements from one column to the next, at least rows
    std::size_t elem_bytes = 0; ///< 2 or 4
    /// Returns the bytes that are read and written.
    [[nodiscard]] std::size_t bytes() const noexcept { return 2 * rows * count * elem_bytes; }
};

/// A row-major gradient in device memory whose columns are scored: see detail/numerics/column_score.hpp. Both arrays
/// begin at multiples of their element's size, do not overlap, and must live until the stream has finished the pass.
struct column_scoring {
    device_ptr grad;                                  ///< rows * columns elements
    dtype type = dtype::float32;                      ///< element type of the gradient
    std::size_t rows = 0;                             ///< rows of the matrix
    std::size_t columns = 0;                          ///< columns of the matrix
    device_ptr result;                                ///< largest_pieces() or scores() elements of std::uint32_t
    column_score kind = column_score::magnitude;      ///< which score
    float scale = 1;                                  ///< see column_score_scale_for()
    static constexpr std::size_t piece_elems = 65536; ///< elements of a piece
    /// Number of results of find_largest(). Result k has the bits of the largest finite magnitude in piece k, which
    /// begins at element k * piece_elems; 0 if none is finite.
    [[nodiscard]] std::size_t largest_pieces() const noexcept
    {
        return (rows * columns + piece_elems - 1) / piece_elems;
    }
    /// Number of results of score_columns(). Result k * columns + c sums reference::column_score_of() in column c over
    /// up to column_score_rows rows, from row k * column_score_rows on.
    [[nodiscard]] std::size_t scores() const noexcept
    {
        return (rows + column_score_rows - 1) / column_score_rows * columns;
    }
    /// Number of bytes that are read.
    [[nodiscard]] std::size_t bytes() const noexcept { return rows * columns * size_bytes(type); }
};

/// A pass over some pieces. Spans are read before run() returns.
struct device_pass {
    block_pass pass = block_pass::measure;       ///< which pass
    std::span<std::uint32_t const> pieces = {};  ///< numbers of the pieces
    std::span<group_step const> speculated = {}; ///< for each group: the values of a speculate pass
    std::span<group_step const> settled = {};    ///< for each group: the values of every other pass
    std::span<std::uint8_t const> summed = {};   ///< for each piece of the part: whether to add its accumulator
    bool keep_records = false;                   ///< whether to record the state before the step
};

/// An optimizer's pieces on one device, with memory for records of all their blocks, or without records. Functions
/// enqueue in stream `work` unless stated otherwise. Blocks are numbered over all pieces in order.
///
/// The passes do with a block what the CPU's passes do, and give the same bits: see block_pass. The differences:
///   - A part with records has memory for the record of every block. A part without records gets no speculate, redo and
///     rollback passes and no keep_records.
///   - The passes `measure` and `compare` compute the sums of squares that fetch() returns. Some records need the
///     step's gradient to roll a block back. For such a block, `compare` must detect a gradient that has changed since
///     the step: it then writes a sum that differs from the step's. A record that is a copy of the old values needs no
///     gradient.
///   - The pass `rollback` rounds the restored params to weight_out. The weight_out of split params is state, and is
///     restored itself.
///
/// Thread safety: one call at a time. Enqueued passes may run meanwhile.
class device_part {
public:
    virtual ~device_part() = default;
    /// Enqueues a pass over blocks.
    virtual void run(device_pass const& pass) = 0;
    /// Enqueues accumulator = grad if `first`, otherwise accumulator += grad.
    virtual void accumulate(std::uint32_t piece, bool first) = 0;
    /// Rounds param to weight_out in all pieces that have a weight_out, except that of split params, which is state.
    virtual void round_weights() = 0;
    /// Sets the gradient of a piece for all passes that are enqueued after this call. When it is called, no enqueued
    /// pass may still need the piece.
    virtual void set_gradient(std::uint32_t piece, device_ptr grad) = 0;
    /// Invalidates all records: later work uses none of earlier work. Enqueues nothing and cannot fail.
    virtual void forget_records() noexcept = 0;
    /// Enqueues in stream `down`, after all work so far, a copy to the spans: for each block, the sums of squares of
    /// the last measuring pass, and whether there is a record (0 or 1). The spans have one element for each block, and
    /// must live until that stream has finished.
    virtual void fetch(std::span<grad_squares> squares, std::span<std::uint8_t> recorded) = 0;
};

/// A device. Functions that enqueue return immediately (but see copy_up()) and throw only bad_alloc, or unavailable in
/// a forked child process. If enqueued work fails, all later work in all streams is skipped until reset(), so it is
/// known which work has finished. Waiting throws a device_error that names the failed work.
///
/// Thread safety: all functions are thread-safe. reset() may run beside functions that enqueue: work that is enqueued
/// before it returns may be dropped. Destroy a device only while no other call is in progress.
///
/// In a forked child process, functions that enqueue, wait or use device memory throw unavailable, unless they have
/// nothing to do (0 bytes). release() does nothing and reset() returns false; destructors leak the device's resources.
/// name(), claim() and leave() work.
///
/// A device object holds the pieces of one optimizer at a time, because reset() drops all enqueued work. Create a
/// separate object for each optimizer; several objects may use the same GPU.
class device {
public:
    using clock = std::chrono::steady_clock; ///< clock of deadlines

    /// Claims the device for an optimizer.
    /// @throws invalid_argument if another optimizer has it
    void claim(void const* user);
    /// Releases an optimizer's claim on the device.
    void leave(void const* user) noexcept;

    device() = default;
    device(device const&) = delete;
    device& operator=(device const&) = delete;
    virtual ~device() = default;

    /// Returns a name for messages: "NVIDIA H200 (cuda:0)".
    [[nodiscard]] virtual std::string name() const = 0;
    /// Returns the total and the free memory.
    /// @throws device_error if they cannot be read
    [[nodiscard]] virtual device_memory memory() const = 0;

    /// Whether passes can use host memory, as on an APU. Then the device_ptr of host memory is its address, and an
    /// optimizer keeps one copy of everything: passes use the shards' arrays. Arrays that are not aligned to
    /// device_piece::alignment are copied, as for other devices.
    [[nodiscard]] virtual bool shares_host_memory() const noexcept { return false; }

    /// Allocates memory with undefined contents, aligned to 256 bytes; null for 0 bytes. Release it before the device
    /// is destroyed.
    /// @throws unavailable, with the requested and the free size, if the memory does not fit, and device_error for any
    /// other failure
    [[nodiscard]] virtual device_ptr allocate(std::size_t bytes) = 0;
    /// Frees memory that allocate() of this device returned, or null. No enqueued work may use it.
    virtual void release(device_ptr memory) noexcept = 0;

    /// Enqueues a copy from host memory in stream `up`. Host memory must live until the stream has finished the copy.
    /// Copies from or to host memory that pinned() did not allocate are slower. A copy_down() to such memory may block
    /// until the stream reaches the copy.
    virtual void copy_up(device_ptr dst, void const* src, std::size_t bytes) = 0;
    /// Enqueues a copy to host memory in stream `down`.
    virtual void copy_down(void* dst, device_ptr src, std::size_t bytes) = 0;
    /// Enqueues, in stream `work`, a copy of by_rows to by_columns. Other elements of by_columns do not change.
    virtual void gather_columns(column_copy const& copy) = 0;
    /// Enqueues the inverse of gather_columns() in stream `work`. Other columns of by_rows do not change.
    virtual void scatter_columns(column_copy const& copy) = 0;
    /// Enqueues, in stream `work`, a pass that writes largest_pieces() results.
    virtual void find_largest(column_scoring const& scoring) = 0;
    /// Enqueues, in stream `work`, a pass that writes scores() results.
    virtual void score_columns(column_scoring const& scoring) = 0;
    /// Enqueues a call of the function, which a thread of the host makes when the stream reaches it. It must be quick,
    /// must not throw, and must not call the device. It is not called if earlier work has failed; its captures may live
    /// until reset().
    virtual void call(device_stream stream, std::function<void()> function) = 0;

    /// Records an event in the stream, after everything enqueued so far.
    [[nodiscard]] virtual device_event record_event(device_stream stream) = 0;
    /// Makes work that is enqueued in `stream` from now on wait for the event.
    virtual void wait_event(device_stream stream, device_event event) = 0;
    /// Waits for the event. Returns whether the stream reached it by the deadline. Throws device_error if any work has
    /// failed.
    [[nodiscard]] virtual bool wait_until(device_event event, clock::time_point deadline) = 0;

    /// Drops work that has not begun, as far as the device can, waits for the rest until the deadline, and clears the
    /// failure. Returns false if the device cannot continue or does not answer. Device memory keeps its contents.
    [[nodiscard]] bool reset(clock::time_point deadline) noexcept
    {
        resets_.fetch_add(1);
        return reset_streams(deadline);
    }
    /// Returns the number of calls of reset(). Each may have dropped an optimizer's work. Thread-safe.
    [[nodiscard]] std::uint64_t resets() const noexcept { return resets_.load(); }

    /// Allocates at least `bytes` bytes of pinned host memory, aligned to 4096 bytes; freed with the last pointer to
    /// it, which may outlive the device.
    /// @throws unavailable if too little memory can be pinned
    [[nodiscard]] virtual std::shared_ptr<std::byte> pinned(std::size_t bytes) = 0;

    /// Creates an optimizer's part; this device must outlive it. The caller has checked the pieces. Throws as
    /// allocate() does.
    [[nodiscard]] virtual std::unique_ptr<device_part> make_part(std::vector<device_piece> pieces,
                                                                 bool with_records) = 0;
    /// Returns the bytes that make_part() allocates.
    [[nodiscard]] virtual std::size_t part_bytes(std::span<device_piece const> pieces,
                                                 bool with_records) const noexcept = 0;

    /// Returns the usage of the streams. It includes at least all work that has been waited for.
    [[nodiscard]] virtual device_usage usage() const = 0;

private:
    /// Implements reset().
    [[nodiscard]] virtual bool reset_streams(clock::time_point deadline) noexcept = 0;

    std::atomic<void const*> user_{nullptr};
    std::atomic<std::uint64_t> resets_{0};
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/device/device.ipp>
#include <adamant/detail/device/placement.ipp>
#endif
