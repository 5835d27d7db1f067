// SPDX-License-Identifier: Apache-2.0
// All that is compiled once, but the kernels of formats.
#if !defined(ADAMANT_SEPARATE_COMPILATION)
#error                                                                                                                 \
    "adamant: define ADAMANT_SEPARATE_COMPILATION for every file of the program, this one too (or link to adamant::compiled)"
#endif

#include <array>
#include <cstddef>

#include <adamant/adamant.hpp>
#include <adamant/device/emulated_device.hpp>
#include <adamant/src/formats.hpp>
#include <adamant/zenflow.hpp>

#include <adamant/config/offload_config.ipp>
#include <adamant/core/error.ipp>
#include <adamant/device/best_ratio.ipp>
#include <adamant/device/device.ipp>
#include <adamant/device/emulated_device.ipp>
#include <adamant/device/placement.ipp>
#include <adamant/device/split.ipp>
#include <adamant/exec/executor.ipp>
#include <adamant/exec/memory.ipp>
#include <adamant/exec/memory_limits.ipp>
#include <adamant/exec/memory_placement.ipp>
#include <adamant/exec/resctrl.ipp>
#include <adamant/exec/resctrl_files.ipp>
#include <adamant/exec/team.ipp>
#include <adamant/kernel/isa.ipp>
#include <adamant/numerics/coefficients.ipp>
#include <adamant/numerics/hyperparameters.ipp>
#include <adamant/numerics/squares_total.ipp>
#include <adamant/optimizer.ipp>
#include <adamant/shard/format.ipp>
#include <adamant/shard/shard.ipp>
#include <adamant/shard/shard_list.ipp>
#include <adamant/step/column_scores.ipp>
#include <adamant/step/grad_norm.ipp>
#include <adamant/step/loss_scaler.ipp>
#include <adamant/step/optimizer_options.ipp>
#include <adamant/step/optimizer_report.ipp>
#include <adamant/step/step.ipp>
#include <adamant/topology/cpu_quota.ipp>
#include <adamant/topology/index_set.ipp>
#include <adamant/topology/launch_mask.ipp>
#include <adamant/topology/machine.ipp>
#include <adamant/topology/ranks.ipp>
#include <adamant/topology/read_machine.ipp>
#include <adamant/topology/selection.ipp>
#include <adamant/tune/core_search.ipp>
#include <adamant/tune/core_tuning.ipp>
#include <adamant/tune/ratio_follower.ipp>
#include <adamant/tune/trial_step.ipp>
#include <adamant/tune/tuned_cores.ipp>
#include <adamant/zenflow.ipp>
#include <adamant/zenflow/column_selection.ipp>
#include <adamant/zenflow/zenflow_options.ipp>

ADAMANT_BEGIN_NAMESPACE

namespace kernel {
template sum_kernels const& sum_kernels_for<float>(isa) noexcept;
template sum_kernels const& sum_kernels_for<bfloat16>(isa) noexcept;
template block_squares_function block_squares_for<float>(isa) noexcept;
template block_squares_function block_squares_for<bfloat16>(isa) noexcept;
template block_squares_function block_squares_for<float16>(isa) noexcept;
} // namespace kernel

namespace detail {

// By grad, both moments and weight_out, for each param.
[[nodiscard]] inline std::array<shard_format, 6 * formats_in_part> make_all_formats() noexcept
{
    formats_part const parts[] = {
        formats_float32(), formats_float32_to_bfloat16(), formats_float32_to_float16(), formats_bfloat16(),
        formats_float16(), formats_split_float32()};
    std::array<shard_format, 6 * formats_in_part> all;
    std::size_t at = 0;
    for (std::size_t i = 0; i < formats_in_part; ++i)
        for (std::size_t part = 0; part < 3; ++part)
            all[at++] = parts[part][i];
    for (std::size_t part = 3; part < 6; ++part)
        for (shard_format const& format : parts[part])
            all[at++] = format;
    return all;
}

} // namespace detail

std::span<shard_format const> all_formats() noexcept
{
    static std::array const all = detail::make_all_formats();
    return all;
}

shard_format const* find_format(shard_dtypes const& types) noexcept
{
    for (shard_format const& format : all_formats())
        if (format.types == types)
            return &format;
    return nullptr;
}

ADAMANT_END_NAMESPACE
