// SPDX-License-Identifier: Apache-2.0
// For commands that take a while: how far they are, and the wish to stop.
#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>

#include <unistd.h>

namespace cli {

// While one is there, the first Ctrl-C is only noted; the second ends the program as usual.
class interruption {
public:
    interruption() : before_(std::signal(SIGINT, note)) { noted_ = 0; }
    ~interruption() { std::signal(SIGINT, before_); }
    interruption(interruption const&) = delete;
    interruption& operator=(interruption const&) = delete;
    [[nodiscard]] static bool noted() noexcept { return noted_ != 0; }

private:
    static void note(int)
    {
        noted_ = 1;
        std::signal(SIGINT, SIG_DFL);
    }
    static inline std::sig_atomic_t volatile noted_ = 0;
    void (*before_)(int);
};

// A bar on stderr with the time that is left, where that is a terminal; elsewhere nothing.
class progress {
public:
    explicit progress(double steps) : steps_(steps), shown_(isatty(STDERR_FILENO) == 1) {}
    ~progress() { clear(); }
    progress(progress const&) = delete;
    progress& operator=(progress const&) = delete;

    // What is being done now.
    void about(std::string what)
    {
        about_ = std::move(what);
        show();
    }
    void advance(double steps = 1)
    {
        done_ += steps;
        show();
    }
    // Where steps are seconds.
    void at_this_time(std::string what)
    {
        done_ = elapsed();
        about(std::move(what));
    }
    void clear()
    {
        if (shown_)
            std::fprintf(stderr, "\r\033[K");
    }

private:
    [[nodiscard]] double elapsed() const
    {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    }
    void show()
    {
        if (!shown_)
            return;
        double const share = steps_ > 0 ? std::min(done_ / steps_, 1.0) : 0;
        double const so_far = elapsed();
        int const filled = static_cast<int>(share * 24);
        std::string left = "...";
        if (share > 0.02)
            left = std::to_string(static_cast<int>(so_far / share * (1 - share) + 0.5)) + " s left";
        std::fprintf(stderr, "\r\033[K[%.*s%.*s] %3.0f%%, %s: %.50s", filled, "########################", 24 - filled,
                     "........................", 100 * share, left.c_str(), about_.c_str());
        std::fflush(stderr);
    }

    double steps_;
    double done_ = 0;
    bool shown_;
    std::string about_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

} // namespace cli
