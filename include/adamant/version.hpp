// SPDX-License-Identifier: Apache-2.0
// The version of the library. CMake and the Python package read it from here.
#pragma once

/// Major version. A change to any bit of a result increments it.
#define ADAMANT_VERSION_MAJOR 0
/// Minor version.
#define ADAMANT_VERSION_MINOR 2
/// Patch version.
#define ADAMANT_VERSION_PATCH 0
