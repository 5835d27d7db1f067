# SPDX-License-Identifier: Apache-2.0
"""install() and uninstall(): Adam and AdamW in place of torch.optim's, in the whole process."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any, Dict

from torch import optim

from . import Adam as _Adam
from . import AdamW as _AdamW
from ._stepping import torch_adam, torch_adamw


# Assigned to torch.optim. isinstance() and issubclass() answer as for torch's classes, also about optimizers that were
# created before install().

class Adam(_Adam, metaclass=ABCMeta):
    __doc__ = _Adam.__doc__

    @classmethod
    def __subclasshook__(cls, other: Any) -> Any:
        return issubclass(other, torch_adam) if cls is Adam else NotImplemented


class AdamW(_AdamW, metaclass=ABCMeta):
    __doc__ = _AdamW.__doc__

    @classmethod
    def __subclasshook__(cls, other: Any) -> Any:
        return issubclass(other, torch_adamw) if cls is AdamW else NotImplemented


_replaced: Dict[str, Any] = {}


def install() -> None:
    """Assign subclasses of these classes to `torch.optim.Adam` and `torch.optim.AdamW`, for the whole process.

    For frameworks that create the optimizer themselves. Call it before modules are imported that execute
    `from torch.optim import AdamW`: such names keep torch's class. Existing optimizers, pickles and classes, and
    `torch.optim.adam` and `torch.optim.adamw`, are unchanged. isinstance() and issubclass() answer as before. An
    argument that is refused, such as amsgrad, is an error. The classes have the metaclass ABCMeta, so a subclass with
    another metaclass needs one that derives from it. May be called again. Not thread-safe.

    Examples
    --------
    >>> import adamant.torch
    >>> import torch
    >>> adamant.torch.install()
    >>> isinstance(torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))]), adamant.torch.AdamW)
    True
    >>> adamant.torch.uninstall()
    """
    for name, ours in (("Adam", Adam), ("AdamW", AdamW)):
        if getattr(optim, name) is not ours:
            _replaced[name] = getattr(optim, name)
            setattr(optim, name, ours)


def uninstall() -> None:
    """Undo install(). Does nothing if it was not called, and leaves classes that others have assigned."""
    for name, ours in (("Adam", Adam), ("AdamW", AdamW)):
        if getattr(optim, name) is ours:
            setattr(optim, name, _replaced[name])
