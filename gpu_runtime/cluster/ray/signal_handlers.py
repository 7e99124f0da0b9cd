"""The protection of this process's signal handlers, which Ray replaces as it starts and as it ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ray._private import utils as ray_utils
from ray._private.node import Node

_SignalHandler = Callable[[int, FrameType | None], Any] | int | None


@contextmanager
def kept_signal_handlers() -> Iterator[None]:
    """Keep this process's handlers while Ray starts or ends, which would replace the one for SIGTERM.

    A cancelled flow would then count as crashed; if cancelled while Ray starts, it would first wait half a
    minute for the cluster to empty. As Ray's core ends, it makes SIGTERM fatal: the handlers are restored
    before Ray ends its processes, which takes a second.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    kept: dict[int, _SignalHandler] = {number: signal.getsignal(number) for number in numbers}

    def put_back() -> None:
        for number, handler in kept.items():  # non-Python parts of Ray replace handlers, too
            signal.signal(number, handler)

    def end_processes(
        self: Node, check_alive: bool = True, allow_graceful: bool = False, wait: bool = False
    ) -> None:
        put_back()
        ends_processes(self, check_alive, allow_graceful, wait)

    takes_over, ends_processes = ray_utils.set_sigterm_handler, Node.kill_all_processes
    ray_utils.set_sigterm_handler = lambda sigterm_handler: None
    Node.kill_all_processes = end_processes
    try:
        yield
    finally:
        ray_utils.set_sigterm_handler, Node.kill_all_processes = takes_over, ends_processes
        put_back()
