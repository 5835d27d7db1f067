// SPDX-License-Identifier: Apache-2.0
// emulated_device: a device emulated by CPU threads in host memory, for tests and machines without a GPU.
//
// Its addresses cannot be dereferenced. Its speed is set by rates, and faults can be injected.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/detail/exec/this_process.hpp>

ADAMANT_BEGIN_NAMESPACE

/// Speed and memory of an emulated device.
struct emulation_options {
    std::string name = "emulated device";            ///< name in reports
    std::size_t memory_bytes = std::size_t{1} << 40; ///< memory that allocate() may use
    /// Bytes per second that passes read and write. The machine's own rates are an upper bound of all rates.
    double work_bytes_per_s = std::numeric_limits<double>::infinity();
    double up_bytes_per_s = std::numeric_limits<double>::infinity();   ///< host to device
    double down_bytes_per_s = std::numeric_limits<double>::infinity(); ///< device to host
    double latency_s = 0;                                              ///< latency of each enqueued operation
    bool shares_host_memory = false; ///< see device: passes use the shards' arrays, as on an APU
};

/// Operations for fault injection.
enum class device_operation : std::uint8_t { copy_up, copy_down, work, allocate };

/// A device that CPU threads emulate, with injected faults. reset() waits for running operations even beyond its
/// deadline, except for those that hang.
class emulated_device final : public device {
public:
    /// Starts the device's threads.
    /// @throws invalid_argument for rates that are not above 0 and a latency below 0; std::system_error if threads
    /// cannot be started
    explicit emulated_device(emulation_options options = {});
    /// Drops work that has not begun. A forked child process does not have the device's threads: there the destructor
    /// leaks the device, and functions that use its streams, memory or faults throw unavailable.
    ~emulated_device() override;

    [[nodiscard]] std::string name() const override { return options_.name; }
    [[nodiscard]] bool shares_host_memory() const noexcept override { return options_.shares_host_memory; }
    /// See device.
    [[nodiscard]] device_memory memory() const override;

    [[nodiscard]] device_ptr allocate(std::size_t bytes) override;
    void release(device_ptr memory) noexcept override;

    void copy_up(device_ptr dst, void const* src, std::size_t bytes) override;
    /// See device.
    void copy_down(void* dst, device_ptr src, std::size_t bytes) override;
    void gather_columns(column_copy const& copy) override;
    /// See device.
    void scatter_columns(column_copy const& copy) override;
    void find_largest(column_scoring const& scoring) override;
    /// See device.
    void score_columns(column_scoring const& scoring) override;
    void call(device_stream stream, std::function<void()> function) override;

    /// See device.
    [[nodiscard]] device_event record_event(device_stream stream) override;
    void wait_event(device_stream stream, device_event event) override;
    [[nodiscard]] bool wait_until(device_event event, clock::time_point deadline) override;

    [[nodiscard]] std::shared_ptr<std::byte> pinned(std::size_t bytes) override;

    /// See device. Defined in emulated_part.hpp, like part_bytes().
    [[nodiscard]] std::unique_ptr<device_part> make_part(std::vector<device_piece> pieces, bool with_records) override;
    [[nodiscard]] std::size_t part_bytes(std::span<device_piece const> pieces,
                                         bool with_records) const noexcept override;

    [[nodiscard]] device_usage usage() const override;

    /// Makes operation number `after` of this kind fail. Operations are counted from 0, from now on.
    void fail(device_operation kind, std::size_t after = 0);
    /// Makes an operation hang until resume(), or until reset() drops it at its deadline, to test deadlines.
    void hang(device_operation kind, std::size_t after = 0);
    /// Clears all faults. Hung work continues unless it has been dropped.
    void resume();

    /// Returns the host address of device memory, for tests; not synchronised with the streams. Throws device_error for
    /// memory that is not allocated, unless the device shares the host's memory.
    [[nodiscard]] std::byte* real(device_ptr pointer, std::size_t bytes) const;

private:
    friend class emulated_part;
    static constexpr std::size_t alignment = 256;
    static constexpr std::uint64_t first_address = 0xada0'0000'0000'0000; // not a canonical address of any processor
    struct block {
        std::byte* real;
        std::size_t bytes;
    };
    struct fault {
        static constexpr int none = 0, fails = 1, hangs = 2;
        std::size_t after = 0;
        int kind = none;
    };
    struct operation {
        std::function<void()> run = {};
        device_event after = {};
        bool is_wait = false;  // only waits for `after`
        bool is_timed = false; // takes the time of `bytes` and may fail
        device_operation kind = device_operation::work;
        std::size_t bytes = 0;
        std::string description = {};
        std::uint64_t generation = 0;
    };
    struct stream_state {
        std::deque<operation> queue;
        std::uint64_t enqueued = 0;
        std::uint64_t completed = 0; // or dropped
        clock::time_point free_at = {};
        std::thread thread;
    };

    [[nodiscard]] bool reset_streams(clock::time_point deadline) noexcept override;
    // Locks the mutex. Throws unavailable in a forked child process, which has no threads of the device and where the
    // mutex may be locked forever.
    [[nodiscard]] std::unique_lock<std::mutex> lock_state() const;
    [[nodiscard]] bool is_idle() const noexcept;
    // Waits until all work is complete, or drops all work if an operation hangs.
    void drain() noexcept;
    [[nodiscard]] stream_state& state_of(device_stream stream) noexcept;
    [[nodiscard]] fault& fault_of(device_operation kind) noexcept;
    void set_fault(device_operation kind, fault f);
    // Counts one operation and returns its fault.
    static int next_fault(fault& f) noexcept;
    [[nodiscard]] double rate(device_stream stream) const noexcept;

    void enqueue(device_stream stream, device_operation kind, std::size_t bytes, std::string description,
                 std::function<void()> run);
    void copy_columns(column_copy const& copy, bool gathers);
    void push(device_stream stream, operation op);
    void stop() noexcept;

    void serve(stream_state& stream);
    [[nodiscard]] bool is_dropped(operation const& op) const noexcept;
    void perform(stream_state& stream, operation& op, std::unique_lock<std::mutex>& lock);

    emulation_options options_;
    mutable std::mutex mutex_; // guards everything below
    detail::process_bound<std::condition_variable> changed_;
    detail::process_bound<std::map<std::uint64_t, block>> blocks_;
    std::uint64_t next_address_ = first_address;
    std::size_t used_bytes_ = 0;
    detail::process_bound<std::string> error_;
    std::uint64_t generation_ = 0;
    unsigned running_ = 0; // operations that run without the lock
    bool hung_ = false;
    bool stopping_ = false;
    fault faults_[4];
    device_usage usage_;
    detail::process_bound<std::array<stream_state, device_streams>> streams_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/device/emulated_device.ipp>
#endif
