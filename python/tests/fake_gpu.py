# SPDX-License-Identifier: Apache-2.0
"""Tensors in host memory that say they are on a GPU, for engines that offload params from one.

    for owner, attributes in replacements():
        for name, value in attributes.items():
            setattr(owner, name, value)
"""
import contextlib

import torch


class Fake(torch.Tensor):
    """A tensor whose is_cuda is True. Copies and states of it are Fake, too; results of arithmetic are not."""

    is_cuda = property(lambda self: True)
    _kept = ("detach", "clone", "float", "zeros_like", "randn_like", "requires_grad_", "as_subclass", "view", "to",
             "bfloat16")

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, Fake) and func.__name__ not in cls._kept:
            return result.as_subclass(torch.Tensor)
        return result

    def cpu(self):
        return torch.Tensor.detach(self).as_subclass(torch.Tensor).clone()

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), fake(self.cpu()) if self.is_leaf else self.clone())

    def __reduce_ex__(self, protocol):  # files contain plain tensors
        return self.cpu().__reduce_ex__(protocol)


def fake(tensor):
    return torch.nn.Parameter(tensor.detach().as_subclass(torch.Tensor).clone().as_subclass(Fake))


class _Event:
    def record(self, stream=None):
        pass

    synchronize = wait = record

    def query(self):
        return True


class _Stream:
    def wait_stream(self, other):
        pass

    wait_event = wait_stream

    def record_event(self):
        return _Event()


def _module_cuda(self, *_):
    for module in self.modules():
        for name, param in list(module._parameters.items()):
            if param is not None and not isinstance(param, Fake):
                module._parameters[name] = fake(param)
                module._parameters[name].__dict__.update(vars(param))
    return self


def replacements(moves=True):
    """Pairs of an object and its attributes to replace. moves: cuda() and to("cuda") make Fake tensors."""
    to, empty, tensor = torch.Tensor.to, torch.empty, torch.tensor

    def to_fake(self, *args, **more):
        if args and args[0] == "cuda":
            return fake(self).detach()
        return to(self, *args, **more)

    def unpinned(*args, pin_memory=False, **more):
        return empty(*args, **more)

    def host_tensor(*args, device=None, **more):
        return tensor(*args, **more)
    cuda = {name: lambda *_: None for name in ("synchronize", "empty_cache", "manual_seed", "manual_seed_all")}
    cuda.update({"current_stream": lambda *_: _Stream(), "current_device": lambda: 0, "Stream": _Stream,
                 "Event": _Event, **{name: lambda _: contextlib.nullcontext() for name in ("stream", "device")}})
    return [(torch.cuda, cuda), (torch, {"empty": unpinned, "tensor": host_tensor}),
            (torch.Tensor, {"pin_memory": lambda self, *_: self, "record_stream": lambda self, _: None}),
            *([(torch.Tensor, {"to": to_fake, "cuda": lambda self, *_: self}),
               (torch.nn.Module, {"cuda": _module_cuda})] if moves else [])]
