"""Weights sent from the trainer to the workers: numpy arrays, their checksum, and two checks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from storage.errors import TrainingError

WeightState = dict[str, np.ndarray]
"""Trained weights by name, float32 on the CPU, as sent from the trainer to the workers."""


def weights_digest(state: Mapping[str, np.ndarray]) -> str:
    """Return a checksum of weights: equal if and only if every bit is (BLAKE2b, 128 bits)."""
    return digest_of(state, state.__getitem__)


def digest_of(names: Iterable[str], read: Callable[[str], np.ndarray]) -> str:
    """Return the same checksum, with the weights read one after another."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(names):
        array = np.ascontiguousarray(read(name))
        digest.update(f"{name}:{array.dtype}:{array.shape};".encode())
        digest.update(array.data)
    return digest.hexdigest()


def refuse_not_finite(state: Mapping[str, np.ndarray], what: str) -> None:
    """Refuse weights, or arrays that belong to them, that are not finite, before they are sent or saved.

    Raises:
        TrainingError: if one is not finite; it names the first.
    """
    for name in sorted(state):
        bad = state[name].size - int(np.count_nonzero(np.isfinite(state[name])))
        if bad:
            raise TrainingError(
                f"{bad:,} of the {state[name].size:,} values of {name} are not finite in {what}; nothing "
                "was published or saved. Resume from the last checkpoint, with a lower "
                "optimizer.learning_rate if this happens again"
            )


def check_sync(published: str, before: str) -> None:
    """Refuse a weight sync that changes nothing.

    Raises:
        TrainingError: if the digests of the weights before and after training are equal.
    """
    if published == before:
        raise TrainingError(
            f"the weight sync changes nothing: weights have the same checksum as before training, {before}; "
            "check that gradients reach the weights and that rounding does not swallow the learning rate"
        )
