// SPDX-License-Identifier: Apache-2.0
// Changed weights among few elements, for the careful step of all instruction sets. detail/kernels/targets.hpp includes
// it once, with the generic facade.

inline std::uint64_t few_changes(array_types const& types, std::byte* before, std::byte* after, std::size_t n) noexcept
{
    std::size_t const size = types.param == dtype::float32 ? sizeof(float) : sizeof(std::uint16_t);
    __builtin_memset(before + n * size, 0, (changed_word_elems - n) * size);
    __builtin_memset(after + n * size, 0, (changed_word_elems - n) * size);
    if (types.param != dtype::float32)
        return word_of_changes<std::uint16_t>(before, after, false);
    switch (types.weight_out) {
    case dtype::bfloat16: return word_of_changes<bfloat16>(before, after, false);
    case dtype::float16: return word_of_changes<float16>(before, after, false);
    case dtype::float32:
    case dtype::none: return word_of_changes<std::uint32_t>(before, after, false);
    case dtype::split_float32: // no weight_out
    case dtype::quantized8: break;
    }
    return 0;
}
