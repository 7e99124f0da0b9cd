"""The worker's side of a local process: it builds its worker, then serves calls, one at a time."""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from storage.errors import RuntimeFailure

_PR_SET_NAME = 15
_STDOUT = 1

_MOST_OUTPUT_BYTES = 1 << 20
"""Size above which a worker's output file is cut, after a call, to the last half of this size."""


@dataclass(frozen=True)
class Answer:
    """The outcome of a call."""

    value: Any = None
    error: Exception | None = None
    trace: str = ""


def serve(descriptor: int) -> None:
    """Serve the driver until it is gone.

    The first message has the worker's name, and the driver's import path, environment and folder, to inherit.
    The second is the function that builds the worker, with its arguments; the answer comes once the worker is
    built. Each further one is a call and gets an answer. The process ends if the worker cannot be built.
    """
    link = Connection(descriptor)
    name, path, environment, folder = pickle.loads(link.recv_bytes())
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)  # `ps` shows its first 15 characters
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
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
        answer = _packed(_answer(worker, message))
        _keep_output()
        link.send_bytes(answer)


def _keep_output() -> None:
    """Flush the output, so it can be read at once, and bound its file."""
    with suppress(OSError, ValueError):  # a full disk, or a closed stream of user code
        sys.stdout.flush()
        sys.stderr.flush()
        if (size := os.fstat(_STDOUT).st_size) > _MOST_OUTPUT_BYTES:
            kept = os.pread(_STDOUT, _MOST_OUTPUT_BYTES // 2, size - _MOST_OUTPUT_BYTES // 2)
            os.ftruncate(_STDOUT, 0)
            os.lseek(_STDOUT, 0, os.SEEK_SET)  # memory is not appended to
            os.write(_STDOUT, kept)


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
