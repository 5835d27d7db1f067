# SPDX-License-Identifier: Apache-2.0
"""Defers Ctrl-C until the library and Python agree again."""

from __future__ import annotations

import threading
from signal import SIGINT, SIGTERM, raise_signal
from typing import Any, Dict, Set

try:  # signal's own functions make enums of all they are given, which takes twenty times as long
    from _signal import getsignal, signal  # type: ignore
except ImportError:
    from signal import getsignal, signal


class _Whole:
    """Within it the main thread's handlers of SIGINT and SIGTERM are deferred, as what they raise would part the library
    from what Python knows of it. They are called at its end. May be nested."""

    def __init__(self) -> None:
        self._depth = 0
        self._handlers: Dict[int, Any] = {}
        self._seen: Set[int] = set()

    def _note(self, number: int, frame: Any) -> None:
        self._seen.add(number)

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # no handler runs here
        if self._depth == 0:
            handlers = self._handlers = {number: getsignal(number) for number in (SIGINT, SIGTERM)}
            try:
                for number, handler in handlers.items():
                    if callable(handler):  # else the system ends the process, or nothing happens
                        signal(number, self._note)
            except BaseException:  # a signal came before its handler was deferred
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
            self._put_back()
        except BaseException:  # by the handler of another signal
            self._put_back()
            raise
        finally:
            self._deliver()

    def _deliver(self) -> None:
        if self._seen:
            try:
                raise_signal(self._seen.pop())
            finally:
                self._deliver()

    def _put_back(self) -> None:
        for number, handler in self._handlers.items():
            if callable(handler):
                signal(number, handler)


whole = _Whole()
