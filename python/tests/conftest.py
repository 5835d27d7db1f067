# SPDX-License-Identifier: Apache-2.0
import signal

import pytest

# A background process of a shell ignores SIGINT, and passes that on to processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def executor():
    import adamant
    return adamant.Executor(threads=2, bind="none")
