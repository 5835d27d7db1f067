# SPDX-License-Identifier: Apache-2.0
"""Adapters for engines that call a CPU optimizer through classes or functions of their own."""
