// SPDX-License-Identifier: Apache-2.0
// The threads of a thread block, on the host: each has a stack, and they change at barriers and where they exchange
// values within a warp. For cuda_runtime.h beside this. In an order that is another for every block, so that a barrier
// that is missing is found.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include <ucontext.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_ON_HOST_ASAN
#endif
#if __has_feature(thread_sanitizer)
#define CUDA_ON_HOST_TSAN
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(CUDA_ON_HOST_ASAN)
#define CUDA_ON_HOST_ASAN
#endif
#if defined(__SANITIZE_THREAD__) && !defined(CUDA_ON_HOST_TSAN)
#define CUDA_ON_HOST_TSAN
#endif
#if defined(CUDA_ON_HOST_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(CUDA_ON_HOST_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

#include "device_words.h"

namespace cuda_on_host {

// Runs thread blocks, one at a time, on the thread that calls it.
class block_runner {
public:
    block_runner() = default;
    block_runner(block_runner const&) = delete;
    block_runner& operator=(block_runner const&) = delete;
#if defined(CUDA_ON_HOST_TSAN)
    ~block_runner()
    {
        for (auto& each : fibers_)
            __tsan_destroy_fiber(each->tsan);
    }
#endif

    // body() once for each of `threads` threads.
    template <class Body>
    void run(unsigned block, unsigned threads, Body& body)
    {
        body_ = &body;
        call_ = [](void* of) { (*static_cast<Body*>(of))(); };
        block_.x = block;
        threads_ = threads;
        started_ = ended_ = 0;
        random_ = random_ * 6364136223846793005u + 1442695040888963407u;
        first_ = static_cast<unsigned>(random_ >> 33) % threads;
        upwards_ = (random_ >> 63) != 0;
        waiting_.clear();
        exchanging_.clear();
        while (started_ < threads_)
            resume(free_fiber());
        while (!waiting_.empty() || !exchanging_.empty()) {
            std::vector<fiber*> all = exchanged();
            if (all.empty() && (waiting_.size() != threads_ || !exchanging_.empty())) {
                std::fprintf(stderr,
                             "cuda_on_host: of %u threads of a block, only %zu come to a barrier; %zu wait for others "
                             "of their warp\n",
                             threads_, waiting_.size(), exchanging_.size());
                std::abort();
            }
            if (all.empty())
                all = std::exchange(waiting_, {});
            for (std::size_t i = 0; i < all.size(); ++i)
                resume(*all[(i + first_) % all.size()]);
        }
    }

    void barrier()
    {
        waiting_.push_back(current_);
        leave(*current_);
    }
    // What another thread of the warp gives; all threads of the mask come.
    [[nodiscard]] unsigned exchange(unsigned mask, unsigned value, unsigned from_stream)
    {
        fiber& self = *current_;
        if ((mask >> stream_of(self) & mask >> from_stream & 1u) == 0) {
            std::fprintf(stderr, "cuda_on_host: a thread exchanges a value with a stream that the mask has not\n");
            std::abort();
        }
        self.mask = mask;
        self.value = value;
        self.from_stream = from_stream;
        exchanging_.push_back(&self);
        leave(self);
        return self.received;
    }
    [[nodiscard]] index3 const& thread() const
    {
        return current_->thread;
    }
    [[nodiscard]] index3 const& block() const
    {
        return block_;
    }

private:
    static constexpr std::size_t stack_bytes = std::size_t{256} << 10;
    // Where a thread left its stack, or where it begins.
    struct stack_state {
        ucontext_t begin = {};
        bool begun = false;
        void* left[5] = {};
    };
    struct fiber {
        block_runner* runner = nullptr;
        stack_state state;
        std::unique_ptr<std::byte[]> stack;
        index3 thread;
        bool busy = false;
        void* tsan = nullptr;
        // Of an exchange.
        unsigned mask = 0;
        unsigned value = 0;
        unsigned from_stream = 0;
        unsigned received = 0;
    };
    static unsigned stream_of(fiber const& of)
    {
        return of.thread.x % 32;
    }
    static unsigned warp_of(fiber const& of)
    {
        return of.thread.x / 32;
    }

    // Threads that have all come to one exchange, with what they get; none where no exchange is complete.
    std::vector<fiber*> exchanged()
    {
        for (fiber const* const first : exchanging_) {
            auto const takes_part = [mask = first->mask, warp = warp_of(*first)](fiber const* each) {
                return each->mask == mask && warp_of(*each) == warp;
            };
            if (std::count_if(exchanging_.begin(), exchanging_.end(), takes_part) != std::popcount(first->mask))
                continue;
            auto const begin = std::partition(exchanging_.begin(), exchanging_.end(),
                                              [&](fiber const* each) { return !takes_part(each); });
            std::vector<fiber*> const all(begin, exchanging_.end());
            exchanging_.erase(begin, exchanging_.end());
            for (fiber* const to : all)
                for (fiber const* const from : all)
                    if (stream_of(*from) == to->from_stream)
                        to->received = from->value;
            return all;
        }
        return {};
    }

    // Runs threads for as long as none of them comes to a barrier.
    void work(fiber& self)
    {
        for (;;) {
            while (started_ < threads_) {
                unsigned const i = started_++;
                self.thread.x = (first_ + (upwards_ ? i : threads_ - i)) % threads_;
                self.busy = true;
                call_(body_);
                self.busy = false;
                ++ended_;
            }
            leave(self);
        }
    }
    static void entry(unsigned low, unsigned high)
    {
        auto* const self =
            reinterpret_cast<fiber*>(static_cast<std::uintptr_t>(high) << 32 | static_cast<std::uintptr_t>(low));
#if defined(CUDA_ON_HOST_ASAN)
        __sanitizer_finish_switch_fiber(nullptr, &self->runner->stack_, &self->runner->stack_bytes_);
#endif
        self->runner->work(*self);
    }
    fiber& free_fiber()
    {
        for (auto& each : fibers_)
            if (!each->busy)
                return *each;
        auto made = std::make_unique<fiber>();
        made->runner = this;
        made->stack = std::make_unique<std::byte[]>(stack_bytes);
        ucontext_t& begin = made->state.begin;
        getcontext(&begin);
        begin.uc_stack.ss_sp = made->stack.get();
        begin.uc_stack.ss_size = stack_bytes;
        begin.uc_link = nullptr;
#if defined(CUDA_ON_HOST_TSAN)
        made->tsan = __tsan_create_fiber(0);
#endif
        auto const address = reinterpret_cast<std::uintptr_t>(made.get());
        makecontext(&begin, reinterpret_cast<void (*)()>(&entry), 2, static_cast<unsigned>(address),
                    static_cast<unsigned>(address >> 32));
        fibers_.push_back(std::move(made));
        return *fibers_.back();
    }
    // swapcontext() would also set the signal mask, by a system call that takes longer than a kernel's arithmetic. Not
    // instrumented: at a jump AddressSanitizer clears what it knows of the stack, whose frames are all still in use.
    [[gnu::noinline, gnu::no_sanitize_address]] static void change_stacks(stack_state& from, stack_state& to)
    {
        if (__builtin_setjmp(from.left) != 0)
            return;
        if (to.begun)
            continue_on(to);
        to.begun = true;
        setcontext(&to.begin);
    }
    // A function may not have both of these for one buffer.
    [[gnu::noinline, gnu::no_sanitize_address]] static void continue_on(stack_state& to)
    {
        __builtin_longjmp(to.left, 1);
    }
    void resume(fiber& next)
    {
        current_ = &next;
#if defined(CUDA_ON_HOST_ASAN)
        void* fake = nullptr;
        __sanitizer_start_switch_fiber(&fake, next.stack.get(), stack_bytes);
#endif
#if defined(CUDA_ON_HOST_TSAN)
        tsan_ = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(next.tsan, 0);
#endif
        change_stacks(here_, next.state);
#if defined(CUDA_ON_HOST_ASAN)
        __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    }
    void leave(fiber& self)
    {
#if defined(CUDA_ON_HOST_ASAN)
        void* fake = nullptr;
        __sanitizer_start_switch_fiber(&fake, stack_, stack_bytes_);
#endif
#if defined(CUDA_ON_HOST_TSAN)
        __tsan_switch_to_fiber(tsan_, 0);
#endif
        change_stacks(self.state, here_);
#if defined(CUDA_ON_HOST_ASAN)
        __sanitizer_finish_switch_fiber(fake, &stack_, &stack_bytes_);
#endif
    }

    stack_state here_ = {.begin = {}, .begun = true, .left = {}};
    std::vector<std::unique_ptr<fiber>> fibers_;
    std::vector<fiber*> waiting_;    // at a barrier
    std::vector<fiber*> exchanging_; // or for others of their warp
    fiber* current_ = nullptr;
    void* body_ = nullptr;
    void (*call_)(void*) = nullptr;
    index3 block_;
    unsigned threads_ = 0;
    unsigned started_ = 0;
    unsigned ended_ = 0;
    unsigned first_ = 0;
    bool upwards_ = true;
    std::uint64_t random_ = 1;
    // Of the thread that runs blocks, for sanitizers.
    void const* stack_ = nullptr;
    std::size_t stack_bytes_ = 0;
    void* tsan_ = nullptr;
};

// The one whose blocks the calling thread runs.
inline thread_local block_runner* runner = nullptr;

} // namespace cuda_on_host

#define threadIdx (cuda_on_host::runner->thread())
#define blockIdx (cuda_on_host::runner->block())
inline void __syncthreads()
{
    cuda_on_host::runner->barrier();
}
inline unsigned __shfl_xor_sync(unsigned mask, unsigned value, unsigned streams)
{
    return cuda_on_host::runner->exchange(mask, value, threadIdx.x % 32 ^ streams);
}
