// SPDX-License-Identifier: Apache-2.0
// The version of the library. CMake and the Python package read it from here.
#pragma once

#define ADAMANT_VERSION_MAJOR 0
#define ADAMANT_VERSION_MINOR 2
#define ADAMANT_VERSION_PATCH 0
