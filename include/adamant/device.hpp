// SPDX-License-Identifier: Apache-2.0
// The interface of a device, and which shards it gets.
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
#include <adamant/reference.hpp>
#include <adamant/detail/numerics/column_score.hpp>
#include <adamant/detail/shard/block_pass.hpp>

// The pieces of shards that the CPU and the device update. Plain data.

ADAMANT_BEGIN_NAMESPACE

enum class backend_kind : std::uint8_t { cpu, device };

/// Elements [begin, begin + elems) of one shard. begin is a multiple of norm_block_elems, so that no cut changes a sum.
struct shard_piece {
    std::size_t shard; ///< index of the shard
    std::size_t begin; ///< first element of the piece in the shard
    std::size_t elems; ///< number of elements
    backend_kind on;   ///< where the piece is updated
    /// Compares all members.
    friend bool operator==(shard_piece const&, shard_piece const&) = default;
};

/// Every element of every shard, once: pieces in the order of shards and elements. Shards without elements have none.
struct placement {
    std::vector<shard_piece> pieces; ///< pieces in the order of shards
    std::size_t cpu_elems = 0;       ///< elements that the CPU updates
    std::size_t device_elems = 0;    ///< elements that the device updates
    double ratio_asked = 1;          ///< the ratio that was requested
    /// A memory limit did not allow the requested ratio, and this is the nearest that it allows. Not set where a limit
    /// only excluded the nearest cut or set of shards; compare ratio() with ratio_asked for that.
    bool limited = false;
    /// No other placement of this kind, in this order and within the limits, is nearer to the ratio. False only for
    /// whole shards with sizes so different that not all of their sums could be searched; then the placement is a near
    /// one.
    bool nearest = true;

    /// The share of elements that the CPU has; 1 where there are none.
    [[nodiscard]] double ratio() const noexcept;
    /// Compares all members.
    friend bool operator==(placement const&, placement const&) = default;
};

/// Throws invalid_argument unless the placement gives each element of shards of these sizes one side, in order, with
/// cuts at multiples of norm_block_elems, and counts them correctly.
void validate(placement const& of, std::vector<std::size_t> const& sizes);

namespace detail {

// Call it in the order of pieces. Empty pieces are left out.
void append_piece(placement& to, std::size_t shard, std::size_t begin, std::size_t elems, backend_kind on);

} // namespace detail

// What a device must be able to do to take a part of an optimizer's shards: memory of its own, copies both ways, and
// the passes of a step over blocks. Everything is enqueued; waiting reports failures.

/// An address in a device's memory, which the host must not read. With CUDA it is the pointer itself.
struct device_ptr {
    std::uint64_t address = 0; ///< address on the device
    /// Whether it points to memory.
    [[nodiscard]] explicit operator bool() const noexcept { return address != 0; }
    /// Address arithmetic in bytes.
    friend device_ptr operator+(device_ptr base, std::size_t bytes) noexcept { return {base.address + bytes}; }
    /// Compares all members.
    friend bool operator==(device_ptr, device_ptr) = default;
};

/// The queues of a device. Each works in the order in which it was given work; different queues work at the same time.
enum class device_stream : std::uint8_t {
    work, ///< passes
    up,   ///< copies from the host
    down, ///< copies to it
};
inline constexpr std::size_t device_streams = 3;
[[nodiscard]] constexpr char const* name(device_stream of) noexcept
{
    constexpr char const* names[] = {"work", "up", "down"};
    return names[static_cast<std::size_t>(of)];
}

/// Everything that had been enqueued in a stream at some point.
struct device_event {
    device_stream stream = device_stream::work; ///< the stream
    std::uint64_t number = 0;                   ///< position in the stream
};

/// Memory of a device.
struct device_memory {
    std::size_t total_bytes = 0; ///< total size
    std::size_t free_bytes = 0;  ///< free now
};

/// The streams' work since the device was made.
struct device_usage {
    double busy_s[device_streams] = {};       ///< seconds that each stream was busy
    std::uint64_t bytes[device_streams] = {}; ///< copied; of work, read and written
};

/// Consecutive elements of a shard that lie on a device, from a multiple of norm_block_elems on. Every array begins at
/// a multiple of 16 bytes.
struct device_piece {
    /// As shard_array names them. weight_out and accumulator may be null.
    device_ptr arrays[6];
    dtype types[6] = {};                  ///< element types by shard_array
    std::size_t elems = 0;                ///< number of elements
    std::size_t group = 0;                ///< parameter group
    place_in_param place = {};            ///< of its first element
    shard_format const* format = nullptr; ///< with the host's kernels for these types
    /// Number of norm blocks.
    [[nodiscard]] std::size_t blocks() const noexcept;
};

/// For a shard whose gradient is made on a device and whose weights are needed there: the caller's arrays, of the
/// shard's size and types, in that device's memory. The CPU's part then passes through the shard's own arrays, which
/// are best in pinned memory. Without device_arrays, gradients and weights are in host memory, as for a CPU alone.
struct device_arrays {
    device_ptr grad;       ///< the gradient on the device
    device_ptr weight_out; ///< null for a shard without
};

/// Columns of a matrix that lies by rows, and the same columns one after another. All in the device's memory.
struct column_copy {
    device_ptr by_rows;         ///< rows * columns elements
    device_ptr by_columns;      ///< element r of listed column i is number i * pitch + r; or list[i] * pitch + r
    bool own_places = false;    ///< the latter
    device_ptr list;            ///< std::uint32_t: the numbers of `count` columns
    std::size_t rows = 0;       ///< rows of the matrix
    std::size_t columns = 0;    ///< columns of the matrix
    std::size_t count = 0;      ///< number of listed columns
    std::size_t pitch = 0;      ///< in elements, at least rows
    std::size_t elem_bytes = 0; ///< 2 or 4
    /// Read and written.
    [[nodiscard]] std::size_t bytes() const noexcept { return 2 * rows * count * elem_bytes; }
};

/// A row-major gradient whose columns are scored: see detail/numerics/column_score.hpp. In the device's
/// memory.
struct column_scoring {
    device_ptr grad;                                  ///< rows * columns elements
    dtype type = dtype::float32;                      ///< element type of the gradient
    std::size_t rows = 0;                             ///< rows of the matrix
    std::size_t columns = 0;                          ///< columns of the matrix
    device_ptr result;                                ///< std::uint32_t, as many as largest_pieces() or scores() says
    column_score kind = column_score::magnitude;      ///< which score
    float scale = 1;                                  ///< see column_score_scale_for()
    static constexpr std::size_t piece_elems = 65536; ///< elements of a piece
    /// For each piece, the bits of its largest finite magnitude.
    [[nodiscard]] std::size_t largest_pieces() const noexcept
    {
        return (rows * columns + piece_elems - 1) / piece_elems;
    }
    /// For each column_score_rows rows the sums of reference::column_score_of() in each column.
    [[nodiscard]] std::size_t scores() const noexcept
    {
        return (rows + column_score_rows - 1) / column_score_rows * columns;
    }
    [[nodiscard]] std::size_t bytes() const noexcept { return rows * columns * size_bytes(type); } ///< read
};

/// A pass over some pieces. Spans are read before run() returns.
struct device_pass {
    block_pass pass = block_pass::measure;       ///< which pass
    std::span<std::uint32_t const> pieces = {};  ///< by number
    std::span<group_step const> speculated = {}; ///< for each group: the step that records are made with, ...
    std::span<group_step const> settled = {};    ///< ... and the step of all other passes
    std::span<std::uint8_t const> summed = {};   ///< for each piece of the part: whether its accumulator counts
    bool keep_records = false;                   ///< whether records are kept
};

/// An optimizer's pieces on one device, with room for records of all their blocks, or for none. Its functions enqueue
/// in the stream work unless they say otherwise. Blocks are counted over all pieces in order.
///
/// The passes do the same to a block as on the CPU, with the same bits: see block_pass. The differences:
///   - A part with records always has room for one. A part without records is never asked for any (no speculate, redo
///   or
///     rollback, no keep_records).
///   - measure and compare both leave sums of squares in the results. Where a gradient has changed so that its records
///     cannot rollback the step, compare leaves a sum that differs. Records that are copies can rollback it.
///   - rollback makes weight_out of the params that it restores.
class device_part {
public:
    virtual ~device_part() = default;
    /// Enqueues a pass over blocks.
    virtual void run(device_pass const& pass) = 0;
    /// accumulator = grad, or += grad.
    virtual void accumulate(std::uint32_t piece, bool first) = 0;
    /// Makes weight_out of param, in all pieces that have one.
    virtual void round_weights() = 0;
    /// Work that is enqueued from now on sees no records of earlier work. Enqueues nothing and cannot fail; otherwise
    /// records of an old step could be taken for those of the next.
    virtual void forget_records() noexcept = 0;
    /// In the stream down, after all work so far: writes, for each block, the sums of squares that the last measuring
    /// pass has left, and whether there is a record (0 or 1). The spans have all blocks, and must live until that
    /// stream has finished.
    virtual void fetch(std::span<grad_squares> squares, std::span<std::uint8_t> recorded) = 0;
};

/// A device. Functions that enqueue may be called from any thread, and from several concurrently; they return
/// immediately and throw nothing but bad_alloc. Where enqueued work fails, all work that is enqueued after it, in any
/// stream, is left rolled back until reset(). So finished work can be told from the rest, and waiting throws a
/// device_error that says what failed.
///
/// In a forked child process, functions that may throw throw unavailable, release() does nothing
/// and reset() returns false; destructors leak what belongs to the device.
///
/// One optimizer at a time has pieces on a device object, because reset() drops all enqueued work. Give each optimizer
/// an object of its own, which may be of the same GPU.
class device {
public:
    using clock = std::chrono::steady_clock; ///< clock of deadlines

    /// Called by optimizers. Throws invalid_argument where another optimizer has the device.
    void claim(void const* by);
    /// Releases a caller's claim on the device.
    void leave(void const* by) noexcept;

    device() = default;
    device(device const&) = delete;
    device& operator=(device const&) = delete;
    virtual ~device() = default;

    /// For people to read: "NVIDIA H200 (cuda:0)".
    [[nodiscard]] virtual std::string name() const = 0;
    /// Total and free memory.
    [[nodiscard]] virtual device_memory memory() const = 0;

    /// Memory at a multiple of 256 bytes, with undefined contents; null for 0 bytes. Throws unavailable, with both
    /// sizes, where it does not fit, and device_error where it fails otherwise.
    [[nodiscard]] virtual device_ptr allocate(std::size_t bytes) = 0;
    /// Memory of allocate(), or null. No enqueued work may use it.
    virtual void release(device_ptr memory) noexcept = 0;

    /// Copies, in the streams up and down. Host memory must live until the stream has finished the copy. Copies of
    /// memory that is not pinned() are slower, and a copy down of it may return only when the stream has reached it.
    virtual void copy_up(device_ptr to, void const* from, std::size_t bytes) = 0;
    /// Enqueues a copy to host memory.
    virtual void copy_down(void* to, device_ptr from, std::size_t bytes) = 0;
    /// In the stream work: by_columns from by_rows, and the other way. Elements of other columns, and between the
    /// columns, stay as they are.
    virtual void gather_columns(column_copy const& what) = 0;
    /// The inverse of gather_columns().
    virtual void scatter_columns(column_copy const& what) = 0;
    /// In the stream work: result of largest_pieces() numbers, or of scores().
    virtual void find_largest(column_scoring const& what) = 0;
    /// Enqueues the scores of columns.
    virtual void score_columns(column_scoring const& what) = 0;
    /// Calls the function in a thread of the device when the stream reaches it. It must be quick, must not throw, and
    /// must not call the device. It is not called where earlier work has failed; its captures may live until reset().
    virtual void call(device_stream stream, std::function<void()> function) = 0;

    /// Records an event in the stream, after everything enqueued so far.
    [[nodiscard]] virtual device_event record_event(device_stream stream) = 0;
    /// Work that is enqueued in `stream` from now on waits for the mark.
    virtual void wait_event(device_stream stream, device_event before) = 0;
    /// Waits for the mark; false where it is not reached by the deadline. Throws device_error where anything has
    /// failed.
    [[nodiscard]] virtual bool wait_until(device_event until, clock::time_point deadline) = 0;

    /// Drops work that has not begun, as far as the device can, waits for the rest until the deadline, and forgets the
    /// failure. False where the device cannot continue after it, or does not answer. Its memory keeps its contents.
    [[nodiscard]] virtual bool reset(clock::time_point deadline) noexcept = 0;

    /// Host memory that is copied fastest, of at least that many bytes, at a multiple of 4096; freed with the last
    /// pointer to it. Throws unavailable.
    [[nodiscard]] virtual std::shared_ptr<std::byte> pinned(std::size_t bytes) = 0;

    /// The pieces are checked by the caller. Throws as allocate() does. The device must outlive it.
    [[nodiscard]] virtual std::unique_ptr<device_part> make_part(std::vector<device_piece> pieces,
                                                                 bool with_records) = 0;
    /// What make_part() will allocate.
    [[nodiscard]] virtual std::size_t part_bytes(std::span<device_piece const> pieces,
                                                 bool with_records) const noexcept = 0;

    /// Includes at least all work that has been waited for.
    [[nodiscard]] virtual device_usage usage() const = 0;

private:
    std::atomic<void const*> user_{nullptr};
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/device/device.ipp>
#include <adamant/detail/device/placement.ipp>
#endif
