// SPDX-License-Identifier: Apache-2.0
// The progress bar of long commands, and their interruption by Ctrl-C, a scheduler or the end of a terminal.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <utility>

#include <time.h>
#include <unistd.h>

namespace cli {

// While an object exists, the first SIGINT, SIGTERM or SIGHUP sets a flag; another one, half a second later or more,
// ends the program. One that follows sooner is a copy: timeout and schedulers signal the process and its group.
// Signals that the caller ignores, as nohup does, stay ignored.
class interruption {
public:
    interruption()
    {
        signal_ = 0;
        for (std::size_t i = 0; i < std::size(signals); ++i) {
            old_handlers_[i] = std::signal(signals[i], note);
            if (old_handlers_[i] == SIG_IGN)
                std::signal(signals[i], SIG_IGN);
        }
    }
    ~interruption()
    {
        for (std::size_t i = 0; i < std::size(signals); ++i)
            std::signal(signals[i], old_handlers_[i]);
    }
    interruption(interruption const&) = delete;
    interruption& operator=(interruption const&) = delete;
    [[nodiscard]] static bool is_set() noexcept { return signal_ != 0; }
    // The exit status of a program that this signal has ended.
    [[nodiscard]] static int status() noexcept { return 128 + signal_; }

private:
    static void note(int signal)
    {
        timespec now = {};
        clock_gettime(CLOCK_MONOTONIC, &now);
        std::int64_t const now_ms = std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
        if (signal_ == 0) {
            first_ms_.store(now_ms, std::memory_order_relaxed);
            signal_ = signal;
        } else if (now_ms - first_ms_.load(std::memory_order_relaxed) >= 500) {
            std::signal(signal, SIG_DFL);
            std::raise(signal);
        }
    }
    static constexpr int signals[] = {SIGINT, SIGTERM, SIGHUP};
    static inline std::sig_atomic_t volatile signal_ = 0;
    static inline std::atomic<std::int64_t> first_ms_ = 0;
    void (*old_handlers_[std::size(signals)])(int) = {};
};

// A bar on stderr with an estimate of the remaining time. Prints nothing if stderr is not a terminal.
class progress {
public:
    explicit progress(double steps) : steps_(steps), is_visible_(isatty(STDERR_FILENO) == 1) {}
    ~progress() { clear(); }
    progress(progress const&) = delete;
    progress& operator=(progress const&) = delete;

    // Shows the current activity.
    void set_activity(std::string text)
    {
        activity_ = std::move(text);
        show();
    }
    void advance(double steps = 1)
    {
        completed_ += steps;
        show();
    }
    // For bars whose steps are seconds: advances to the elapsed time.
    void set_activity_now(std::string text)
    {
        completed_ = elapsed();
        set_activity(std::move(text));
    }
    void clear()
    {
        if (is_visible_)
            std::fprintf(stderr, "\r\033[K");
    }

private:
    [[nodiscard]] double elapsed() const
    {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    }
    void show()
    {
        if (!is_visible_)
            return;
        double const share = steps_ > 0 ? std::min(completed_ / steps_, 1.0) : 0;
        double const elapsed_s = elapsed();
        int const filled = static_cast<int>(share * 24);
        std::string remaining = "...";
        if (share > 0.02)
            remaining = std::to_string(static_cast<int>(elapsed_s / share * (1 - share) + 0.5)) + " s left";
        std::fprintf(stderr, "\r\033[K[%.*s%.*s] %3.0f%%, %s: %.50s", filled, "########################", 24 - filled,
                     "........................", 100 * share, remaining.c_str(), activity_.c_str());
        std::fflush(stderr);
    }

    double steps_;
    double completed_ = 0;
    bool is_visible_;
    std::string activity_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

} // namespace cli
