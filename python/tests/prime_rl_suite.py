# SPDX-License-Identifier: Apache-2.0
"""Runs prime-rl's own tests of its CPU kernel, and a training step of its CPU offload with adamant's clipping.

    python prime_rl_suite.py FOLDER [--own] [pytest's arguments]

FOLDER is a checkout of prime-rl. With --own its own kernel is tested instead. Its sign_sgd_step(), which adamant does
not have, and its own kernel need a compiler and ninja. Needs no GPU: streams and pinned memory are replaced.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import fake_gpu


def _module(name: str, folder: Any = None, **values: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(values, **({} if folder is None else {"__path__": [str(folder)]}))
    sys.modules[name] = module


class _Logger:
    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


def load(folder: Path, own: bool = False) -> None:
    """Makes prime-rl's offload importable without its other dependencies, with our functions or its own kernel."""
    import dataclasses
    source = folder / "src" / "prime_rl"
    for name in ("prime_rl", "prime_rl.trainer", "prime_rl.trainer.optim", "prime_rl.utils", "prime_rl.configs"):
        _module(name, source.joinpath(*name.split(".")[1:]))
    config = dataclasses.make_dataclass("OptimizerInBackwardOffloadConfig", [("cpu_optimizer_backend", str, "native")])
    _module("prime_rl.configs.trainer", OptimizerInBackwardOffloadConfig=config)
    _module("prime_rl.utils.logger", get_logger=_Logger)
    import prime_rl.trainer.optim.cpu_adam as cpu_adam  # type: ignore[import-not-found]
    if not own:
        import adamant.integrations.prime_rl as ours
        cpu_adam.__dict__.update({name: getattr(ours, name) for name in ours.__all__})


def test_training_with_clipping_during_backward(monkeypatch: Any) -> None:
    """Against a run that clips after backward."""
    from adamant.integrations.prime_rl_clipping import clipping
    from prime_rl.trainer.optim import offload  # type: ignore[import-not-found]
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor
    for owner, attributes in fake_gpu.replacements(moves=False):
        for name, value in attributes.items():
            monkeypatch.setattr(owner, name, value)
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29781", "RANK": "0"}.get(name, "1"))
    mesh = init_device_mesh("cpu", (1,))
    ends, norms = [], []
    for overlaps in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
        for layer in model[::2]:
            for name, param in list(layer.named_parameters()):
                setattr(layer, name, torch.nn.Parameter(distribute_tensor(param.detach(), mesh, [Replicate()])))
        policy = {id(param): (torch.bfloat16, torch.bfloat16) for param in model.parameters()}
        named, masters = offload._create_cpu_master_weights(model, list(model.named_parameters()), pin_memory=False,
                                                            dtype_policy=policy)
        optimizer = torch.optim.AdamW([param for _, param in named], lr=1e-2, weight_decay=0.1)
        kind = type("Chunked", (clipping(offload.FullCPUOffloadOptimizer),), {"_TARGET_CPU_CHUNK_NUMEL": 1000})
        wrapped = kind(optimizer, offload.OptimizerInBackwardOffloadConfig(), masters)
        manager = wrapped._gradient_manager
        for number in range(6):
            manager.begin_step(0.5, overlap_optimizer=overlaps)
            for micro in range(2):
                manager.begin_backward(final_backward=micro == 1)
                generator = torch.Generator().manual_seed(10 * number + micro)
                batch = distribute_tensor(torch.randn(8, 16, generator=generator).bfloat16(), mesh, [Replicate()])
                (model(batch).float() * (1 + number)).square().mean().backward()
                manager.finish_backward()
            norms.append(manager.clip_grad_norm_(0.5).item())
            wrapped.step()
            wrapped.zero_grad()
            assert all(torch.equal(master.model_param.to_local(), master.cpu_tensor.bfloat16())
                       for master in masters.values())
        manager.close()
        ends.append([tensor.clone() for param in optimizer.state
                     for tensor in (param.detach(), *optimizer.state[param].values())])
    torch.distributed.destroy_process_group()
    print(f"norms {norms[:6]}")
    assert max(norms) > 0.5 and norms[:6] == pytest.approx(norms[6:], rel=1e-6)
    for left, right in zip(*ends):  # the other run's norm is rounded to float32
        assert torch.allclose(left, right, rtol=1e-5, atol=1e-7)


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder, own = Path(sys.argv[1]).resolve(), "--own" in sys.argv
    suite = folder / "tests" / "unit" / "train" / "test_cpu_adam.py"
    if not suite.exists():
        print(f"there is no {suite}; name a checkout of prime-rl", file=sys.stderr)
        return 2
    load(folder, own)
    os.chdir(Path(__file__).parent)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "--noconftest", "--rootdir", str(folder), "--tb=short",
                            "-rA", "--disable-warnings", str(suite), *([] if own else [__file__]),
                            *[argument for argument in sys.argv[2:] if argument != "--own"]]))


if __name__ == "__main__":
    sys.exit(main())
