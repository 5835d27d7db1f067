# SPDX-License-Identifier: Apache-2.0
"""Delays handlers of signals until calls of libadamant_c and their bookkeeping in Python are complete."""

from __future__ import annotations

import threading
from signal import SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, raise_signal
from typing import Any, Dict, Set

try:  # the functions of signal convert all arguments to enums, which takes twenty times as long
    from _signal import getsignal, signal  # type: ignore
except ImportError:
    from signal import getsignal, signal


# Signals that programs, launchers and schedulers handle in Python. Asking for all 64 would take longer than a small
# step.
_signals = (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU)


class _DelayedSignals:
    """Context manager that delays the main thread's handlers of signals until it exits.

    An exception of a handler between a call of libadamant_c and the Python code after it would leave the two
    inconsistent. May be nested.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._handlers: Dict[int, Any] = {}
        self._seen: Set[int] = set()

    def _note(self, number: int, frame: Any) -> None:
        self._seen.add(number)

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python runs handlers in the main thread only
        if self._depth == 0:
            handlers = self._handlers = {number: getsignal(number) for number in _signals}
            try:
                for number, handler in handlers.items():
                    if callable(handler):  # otherwise the system ends the process or ignores the signal
                        signal(number, self._note)
            except BaseException:  # a handler ran before it was replaced
                self._restore()
                raise
        self._depth += 1

    def __exit__(self, *error: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._depth -= 1
        if self._depth == 0:
            self._restore()

    def _restore(self) -> None:
        try:
            self._restore_handlers()
        except BaseException:  # raised by the handler of another signal
            self._restore_handlers()
            raise
        finally:
            self._deliver()

    def _deliver(self) -> None:
        if self._seen:
            try:
                raise_signal(self._seen.pop())
            finally:
                self._deliver()

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            if callable(handler):
                signal(number, handler)


delayed_signals = _DelayedSignals()
