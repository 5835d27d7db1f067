// SPDX-License-Identifier: Apache-2.0
// Definitions of the library for programs compiled with ADAMANT_SEPARATE_COMPILATION.
//
// Include this header in exactly one file of the program, or link to adamant::compiled instead. It takes minutes to
// compile, because it instantiates the kernels of all formats.
#pragma once

#include <adamant/detail/src/formats.hpp>
#include <adamant/detail/src/library.ipp>

ADAMANT_DEFINE_FORMATS(formats_float32, float, void)
ADAMANT_DEFINE_FORMATS(formats_float32_to_bfloat16, float, bfloat16)
ADAMANT_DEFINE_FORMATS(formats_float32_to_float16, float, float16)
ADAMANT_DEFINE_FORMATS(formats_split_float32, split_float32, bfloat16)
ADAMANT_DEFINE_FORMATS(formats_bfloat16, bfloat16, void)
ADAMANT_DEFINE_FORMATS(formats_float16, float16, void)
