// SPDX-License-Identifier: Apache-2.0
// A second file of a program that includes the GPU code: every kernel has one definition.
#include <adamant/cuda.cuh>
