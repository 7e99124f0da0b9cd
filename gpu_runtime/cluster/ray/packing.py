"""The packing of calls and results, and the actor that answers calls.

A call is packed into bytes, because one small argument costs Ray far less than several. Large arrays are left
to Ray, which moves them through its object store without a copy in a pickle.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from gpu_runtime.cluster.ray.model_folders import bring

MOST_ARRAY_BYTES = 1024**2
"""Largest number of bytes of arrays in a packed value; one with more is sent as it is."""


@dataclass(frozen=True)
class _Place:
    """A stand-in for a reference, which Ray resolves only as a separate argument."""

    index: int


class _TooLarge(Exception):
    """Raised for a value with more bytes of arrays than should be copied."""


def pack(value: Any) -> Any:
    """Return a value as bytes, or as it is in a tuple if its arrays are large."""
    array_bytes = 0

    def take_in(buffer: pickle.PickleBuffer) -> bool:
        nonlocal array_bytes
        array_bytes += buffer.raw().nbytes
        if array_bytes > MOST_ARRAY_BYTES:
            raise _TooLarge
        return True  # into the bytes

    try:
        return pickle.dumps(value, protocol=5, buffer_callback=take_in)
    except _TooLarge:
        return (value,)


def unpack(packed: Any) -> Any:
    """Return the value that `pack` has packed."""
    return packed[0] if isinstance(packed, tuple) else pickle.loads(packed)


def pack_call(method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments of `Answering.answer`: a packed method and arguments, then their references.

    Args:
        method: name of the method.
        args: positional arguments.
        kwargs: keyword arguments.
    """
    references: list[Any] = []

    def place_of(arg: Any) -> Any:
        if not isinstance(arg, ray.ObjectRef):
            return arg
        references.append(arg)
        return _Place(len(references) - 1)

    placed = tuple(map(place_of, args)), {name: place_of(arg) for name, arg in kwargs.items()}
    return [pack((method, *placed)), *references]


class Answering:
    """An actor that builds a worker and answers for it through the one method that Ray calls.

    The worker is built once its folders are on this host; the actor `source` sends them.
    """

    def __init__(self, build: Callable[..., Any], folders: Sequence[str], source: Any, *args: Any) -> None:
        for folder in folders:
            _bring_from(source, folder)
        self._worker = build(*args)

    def instance(self) -> str:
        """Return the Ray node that this process is on."""
        return ray.get_runtime_context().get_node_id()

    def answer(self, packed: Any, *referenced: Any) -> Any:
        """Call a method of the worker, or of the actor itself, and return the packed result."""
        method, args, kwargs = unpack(packed)
        if referenced:
            args = [referenced[arg.index] if isinstance(arg, _Place) else arg for arg in args]
            kwargs = {
                name: referenced[arg.index] if isinstance(arg, _Place) else arg
                for name, arg in kwargs.items()
            }
        called = self if hasattr(type(self), method) else self._worker
        return pack(getattr(called, method)(*args, **kwargs))


def _bring_from(source: Any, folder: str) -> None:
    bring(
        Path(folder),
        lambda: ray.get(source.sizes.remote(folder)),
        lambda name, offset: ray.get(source.part.remote(folder, name, offset)),
    )
