// SPDX-License-Identifier: Apache-2.0
// The definitions of a program that is compiled with ADAMANT_SEPARATE_COMPILATION: include this in one of its files, or
// link to adamant::compiled. Takes a compiler minutes, as it has the kernels of all formats.
#pragma once

#include <adamant/src/formats_bfloat16.cpp>
#include <adamant/src/formats_float16.cpp>
#include <adamant/src/formats_float32.cpp>
#include <adamant/src/formats_float32_to_bfloat16.cpp>
#include <adamant/src/formats_float32_to_float16.cpp>
#include <adamant/src/formats_split_float32.cpp>
#include <adamant/src/library.cpp>
