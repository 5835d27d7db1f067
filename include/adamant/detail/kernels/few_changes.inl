// SPDX-License-Identifier: Apache-2.0
// Changed weights among few elements, for the careful step of all instruction sets. detail/kernels/targets.hpp includes
// it once, with the generic facade.

inline std::uint64_t few_changes(array_types const& types, careful_buffer const& before,
                                 careful_buffer const& after) noexcept
{
    static_assert(changed_word_elems == careful_elems);
    if (types.param != dtype::float32)
        return word_of_changes<std::uint16_t>(before.floats, after.floats);
    switch (types.weight_out) {
    case dtype::bfloat16: return word_of_changes<bfloat16>(before.floats, after.floats);
    case dtype::float16: return word_of_changes<float16>(before.floats, after.floats);
    case dtype::float32:
    case dtype::none: return word_of_changes<std::uint32_t>(before.floats, after.floats);
    case dtype::split_float32: // no weight_out
    case dtype::quantized8: break;
    }
    return 0;
}
