// SPDX-License-Identifier: Apache-2.0
// The kernels that several of our programs use, compiled in kernels_once.cpp only: each is code for five instruction sets.
#pragma once

#include <adamant/kernel/dispatch.hpp>

#define ADAMANT_TEST_KERNELS(keyword)                                                                                  \
    keyword template step_function step_for<float, float, float, float, void>(isa) noexcept;                           \
    keyword template step_function step_for<float, float, float, float, bfloat16>(isa) noexcept;                       \
    keyword template step_function step_for<float, bfloat16, float, float, bfloat16>(isa) noexcept;                    \
    keyword template step_function step_for<float, float, bfloat16, float, void>(isa) noexcept;                        \
    keyword template step_function step_for<float, bfloat16, bfloat16, float, void>(isa) noexcept;                     \
    keyword template step_function step_for<bfloat16, float, bfloat16, bfloat16, void>(isa) noexcept;                  \
    keyword template step_function step_for<bfloat16, bfloat16, bfloat16, bfloat16, void>(isa) noexcept;               \
    keyword template block_squares_function block_squares_for<float>(isa) noexcept;                                    \
    keyword template block_squares_function block_squares_for<bfloat16>(isa) noexcept;                                 \
    keyword template recorded_step_function recorded_step_for<float, void>(isa) noexcept;                              \
    keyword template recorded_step_function recorded_step_for<float, bfloat16>(isa) noexcept;                          \
    keyword template recorded_step_function recorded_step_for<bfloat16, void>(isa) noexcept;                           \
    keyword template recorded_step_function recorded_step_for<bfloat16, bfloat16>(isa) noexcept;                       \
    keyword template undo_function undo_for<float>(isa) noexcept

ADAMANT_BEGIN_NAMESPACE
namespace kernel {
ADAMANT_TEST_KERNELS(extern);
} // namespace kernel
ADAMANT_END_NAMESPACE
