# SPDX-License-Identifier: Apache-2.0
import signal

import pytest

# Processes that a shell starts in the background ignore SIGINT, and so would those that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def executor():
    import adamant
    return adamant.Executor(threads=2, bind="none")
