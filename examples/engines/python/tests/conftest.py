# SPDX-License-Identifier: Apache-2.0
import pytest


@pytest.fixture
def executor():
    import adamant
    return adamant.Executor(threads=2, bind="none")
