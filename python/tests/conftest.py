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


@pytest.fixture
def mesh(tmp_path):
    """A mesh of this process alone."""
    torch = pytest.importorskip("torch")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    finally:
        torch.distributed.destroy_process_group()
