"""The worker's side of a local process: it builds its worker, then serves calls, one at a time."""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from storage.errors import RuntimeFailure

_PR_SET_NAME = 15


@dataclass(frozen=True)
class Surroundings:
    """The environment of the driver, which its workers take over.

    Attributes:
        name: name of the worker; `ps` shows its first 15 characters.
    """

    name: str
    path: tuple[str, ...]
    environment: dict[str, str]
    folder: str

    def enter(self) -> None:
        """Apply them to this process."""
        ctypes.CDLL(None).prctl(_PR_SET_NAME, self.name.encode(), 0, 0, 0)
        sys.path[:] = self.path
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)


@dataclass(frozen=True)
class Answer:
    """The outcome of a call."""

    value: Any = None
    error: Exception | None = None
    trace: str = ""


def serve(descriptor: int) -> None:
    """Serve the driver until it is gone.

    The first message is the `Surroundings`. The second one is the function that builds the worker, with its
    arguments; it is answered when the worker is built. Each further one is a call, and is answered, too. The
    process ends if the worker cannot be built.
    """
    link = Connection(descriptor)
    pickle.loads(link.recv_bytes()).enter()
    try:
        built, arguments = pickle.loads(link.recv_bytes())
        worker = built(*arguments)
    except Exception as error:  # noqa: BLE001 - reported to the driver, whatever it is
        link.send_bytes(_packed(_failed(error)))
        return
    link.send_bytes(_packed(Answer()))
    while True:
        try:
            message = link.recv_bytes()
        except EOFError:
            return
        link.send_bytes(_packed(_answer(worker, message)))


def _answer(worker: Any, message: bytes) -> Answer:
    try:
        method, arguments, named = pickle.loads(message)
        return Answer(getattr(worker, method)(*arguments, **named))
    except Exception as error:  # noqa: BLE001 - handled by the caller
        return _failed(error)


def _failed(error: Exception) -> Answer:
    return Answer(error=error, trace="".join(traceback.format_exception(error)))


def _packed(answer: Answer) -> bytes:
    try:
        return pickle.dumps(answer, protocol=5)
    except Exception as error:  # noqa: BLE001 - a value or an error that cannot be pickled
        what = "what it returned" if answer.error is None else f"{answer.error!r}, which it raised,"
        failure = RuntimeFailure(f"{what} cannot be sent to the driver: {error!r}")
        return pickle.dumps(Answer(error=failure, trace=answer.trace or traceback.format_exc()), protocol=5)
