# SPDX-License-Identifier: Apache-2.0
include(${CMAKE_CURRENT_LIST_DIR}/adamant-dependencies.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/adamant-targets.cmake)
