"""Output: the console for users, and output that is dropped if it cannot be written.

It only informs, and must not end a run that is paid for.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from rich.console import Console


@contextmanager
def output_may_fail() -> Iterator[None]:
    """Let output be lost without an error while the context lasts.

    A pipe's reader may have left, a log's disk may be full, a terminal gone, or the process started without
    output. Output and logs of libraries are treated alike, and a lost log leaves no traceback. Characters
    that the output's encoding lacks are written as escapes.
    """
    before = sys.stdout, sys.stderr
    raised, logging.raiseExceptions = logging.raiseExceptions, False
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        # Python has None for a descriptor that was closed when it started.
        streams = [nowhere if stream is None else stream for stream in before]
        sys.stdout, sys.stderr = (cast(TextIO, _Lossy(stream)) for stream in streams)
        try:
            yield
        finally:
            for stream in streams:
                with suppress(ValueError):  # it is closed
                    _settle(stream)
            sys.stdout, sys.stderr = before
            logging.raiseExceptions = raised


class _Lossy:
    """A text stream that drops whatever its underlying stream does not accept."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.reader_left = False

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except UnicodeEncodeError as error:
            return self.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        except BrokenPipeError:
            self._drop_the_rest()
        except (OSError, ValueError):
            pass  # closed, or on a full disk, which keeps it in the buffer until there is room
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop_the_rest()
        except (OSError, ValueError):
            pass

    def _drop_the_rest(self) -> None:
        self.reader_left = True
        _settle(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def reader_left() -> bool:
    """Return True if the standard output went into a pipe whose reader has ended, such as `head`."""
    return isinstance(sys.stdout, _Lossy) and sys.stdout.reader_left


def _settle(stream: TextIO) -> None:
    """Flush a stream or drop its contents, on which Python would fail at exit."""
    try:
        stream.flush()
    except OSError:
        with suppress(OSError):  # without a descriptor it holds nothing
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
            stream.flush()


def console(*, stderr: bool = False, width: int | None = None, plain: bool = False) -> Console:
    """Return a console without markup: brackets and colons of a prompt, a tag or a path are printed as is.

    Args:
        stderr: True to write to standard error.
        width: width in characters; None for the terminal's.
        plain: True for text without colours, which rich does not show in a notebook by itself.
    """
    return Console(
        stderr=stderr,
        width=width,
        markup=False,
        emoji=False,
        highlight=False,
        color_system=None if plain else "auto",
        force_jupyter=False if plain else None,
    )
