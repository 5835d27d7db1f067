# SPDX-License-Identifier: Apache-2.0
"""Delays handlers of signals until calls of libadamant_c and their bookkeeping in Python are complete."""

from __future__ import annotations

import os
import threading
from signal import SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, raise_signal
from typing import Any, Dict, Set

from ._extension import load_extension

try:  # the functions of signal convert all arguments to enums, which takes twenty times as long
    from _signal import getsignal, signal  # type: ignore
except ImportError:
    from signal import getsignal, signal
_replace = load_extension("_signal_handlers").replace


# Signals that programs, launchers and schedulers handle in Python. Asking for all 64 would take longer than a small
# step.
_signals = tuple(map(int, (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU)))


class _DelayedSignals:
    """Context manager that delays the main thread's handlers of signals until it exits.

    An exception of a handler between a call of libadamant_c and the Python code after it would leave the two
    inconsistent. May be nested.

    What the process has registered in C stays: flags such as SA_RESTART, and handlers such as those of
    faulthandler.register(chain=True), which run when signals arrive.
    """

    def __init__(self) -> None:
        self._depth = 0  # already 1 while handlers are replaced: those that run meanwhile may enter, too
        self._thread = 0  # that entered last
        self._handlers: Dict[int, Any] = {}  # those that are replaced
        self._registered: Set[int] = set()  # signals for which the process has registered more than Python does
        self._seen: Dict[int, Any] = {}  # by number: the frame that a signal has interrupted

    def _note(self, number: int, frame: Any) -> None:
        self._seen.setdefault(number, frame)

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python runs handlers in the main thread only
        depth = self._depth
        try:
            self._depth = depth + 1
            if depth == 0:
                self._replace_handlers()
        except BaseException:  # raised by a handler before it was replaced
            if depth == 0:
                self._registered = set(self._handlers)  # one may have been missed
                self._leave()
            self._depth = depth
            raise

    def __exit__(self, *error: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if self._depth > 1:
            self._depth -= 1
        else:
            self._leave()

    def _replace_handlers(self) -> None:
        self._thread = threading.get_ident()
        handlers = self._handlers = {}
        registered = self._registered = set()
        for number in _signals:
            handler = getsignal(number)
            if callable(handler):  # otherwise the system ends the process or ignores the signal
                handlers[number] = handler
                if _replace(signal, number, self._note):
                    registered.add(number)

    def _leave(self) -> None:
        try:
            self._restore_handlers()
        except BaseException:  # raised by a handler that is restored, for another signal
            self._restore_handlers()
            raise
        finally:
            self._depth = 0
            self._deliver()

    def _deliver(self) -> None:
        if self._seen:
            try:
                number, frame = self._seen.popitem()
                handler = getsignal(number)
                # Not by another signal, which would run handlers in C and asyncio's once more.
                handler(number, frame) if callable(handler) else raise_signal(number)
            finally:
                self._deliver()

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            if number in self._registered:
                _replace(signal, number, handler)
            else:
                signal(number, handler)

    def _after_fork(self) -> None:
        """Resets the context in a child forked by another thread: the thread that was in it does not exist there."""
        if self._thread == threading.get_ident():
            return
        is_within, self._depth = self._depth > 0, 0
        self._seen.clear()
        if is_within:
            self._restore_handlers()


delayed_signals = _DelayedSignals()
os.register_at_fork(after_in_child=delayed_signals._after_fork)
