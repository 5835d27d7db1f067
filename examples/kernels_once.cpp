// SPDX-License-Identifier: Apache-2.0
#include "kernels_once.hpp"

ADAMANT_BEGIN_NAMESPACE
namespace kernel {
ADAMANT_TEST_KERNELS();
} // namespace kernel
ADAMANT_END_NAMESPACE
