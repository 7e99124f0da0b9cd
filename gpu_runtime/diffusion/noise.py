"""Noise as a function of identity: every random number follows from its purpose.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a
128-bit counter and a 64-bit key into 128 random bits. The identity of a draw is laid out in those
192 bits without hashing, so two different draws can never share a number:

    key      run seed | iteration
    counter  block within the draw | purpose and denoising step | seed index | prompt

No generator has a state, so no order of arrival, worker or batch can change a draw. Numbers are
made on the CPU in float64 and rounded to float32, the same on every kind of device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import torch

WORD = 2**32
_STEP_BITS = 24
_MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


class Purpose(IntEnum):
    """The purpose of a draw; one byte of the counter."""

    INITIAL = 0
    SDE = 1
    WINDOW = 2
    EVALUATE_INITIAL = 3
    TRAIN_TIME = 4
    TRAIN_NOISE = 5


@dataclass(frozen=True)
class NoiseStream:
    """The identity of one sample's noise: the initial latents and every later draw.

    Attributes:
        run_seed, iteration, prompt_id, seed_index: unsigned 32-bit integers.

    Raises:
        ValueError: if a field does not fit in 32 bits.
    """

    run_seed: int
    iteration: int
    prompt_id: int
    seed_index: int

    def __post_init__(self) -> None:
        for name in ("run_seed", "iteration", "prompt_id", "seed_index"):
            value = getattr(self, name)
            if not 0 <= value < WORD:
                raise ValueError(f"NoiseStream.{name} is {value}; it must lie in 0 .. 2**32 - 1")

    @property
    def of_group(self) -> NoiseStream:
        """The stream that all samples of the prompt group share: that of its first seed, drafted or not.

        It serves draws that a setting makes for the whole group instead of for each sample, never both.
        """
        return replace(self, seed_index=0)


def philox4x32(counter_N4: torch.Tensor, key_N2: torch.Tensor) -> torch.Tensor:
    """Map N counters under N keys to N x 4 random words by Philox4x32-10.

    Args:
        counter_N4: counters, int64, each in 0 .. 2**32 - 1.
        key_N2: keys, int64, each in 0 .. 2**32 - 1.

    Returns:
        int64 words in 0 .. 2**32 - 1, shape (N, 4).
    """
    mask = WORD - 1
    c0, c1, c2, c3 = counter_N4.unbind(-1)
    k0, k1 = key_N2.unbind(-1)
    for _ in range(_ROUNDS):
        # int64 products wrap modulo 2**64, which leaves the unsigned bit pattern intact.
        product0, product1 = c0 * _MULTIPLIER[0], c2 * _MULTIPLIER[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & mask) ^ c1 ^ k0,
            product1 & mask,
            ((product0 >> 32) & mask) ^ c3 ^ k1,
            product0 & mask,
        )
        k0, k1 = (k0 + _WEYL[0]) & mask, (k1 + _WEYL[1]) & mask
    return torch.stack((c0, c1, c2, c3), dim=-1)


def _words(streams: Sequence[NoiseStream], purpose: Purpose, step: int, blocks: int) -> torch.Tensor:
    """Return the random words of a draw: int64, shape (B, 4 * blocks)."""
    if not 0 <= step < 2**_STEP_BITS:
        raise ValueError(f"step is {step}; it must lie in 0 .. 2**{_STEP_BITS} - 1")
    identity_B4 = torch.tensor(
        [(s.run_seed, s.iteration, s.seed_index, s.prompt_id) for s in streams], dtype=torch.int64
    )
    batch = len(streams)
    counter = torch.empty(batch, blocks, 4, dtype=torch.int64)
    counter[..., 0] = torch.arange(blocks)
    counter[..., 1] = (int(purpose) << _STEP_BITS) | step
    counter[..., 2:] = identity_B4[:, None, 2:]
    key = identity_B4[:, None, :2].expand(batch, blocks, 2)
    return philox4x32(counter, key).reshape(batch, 4 * blocks)


def normal(
    streams: Sequence[NoiseStream], purpose: Purpose, step: int, shape: tuple[int, ...]
) -> torch.Tensor:
    """Return standard normal draws, one of `shape` per stream (Box-Muller on Philox words).

    Args:
        step: denoising step of the draw (or index among several of the same kind), 0 if it has none.
        shape: shape of one draw.

    Returns:
        float32 on the CPU, shape (B, *shape).
    """
    count = math.prod(shape)
    words = _words(streams, purpose, step, -(-count // 4)).to(torch.float64)
    # The half keeps u above 0, where the logarithm is infinite.
    uniform = (words + 0.5) / WORD
    radius = torch.sqrt(-2.0 * torch.log(uniform[:, 0::2]))
    angle = (2.0 * math.pi) * uniform[:, 1::2]
    pair = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=-1)
    return pair.reshape(len(streams), -1)[:, :count].reshape(len(streams), *shape).to(torch.float32)


def integers(streams: Sequence[NoiseStream], purpose: Purpose, bound: int) -> list[int]:
    """Return one integer in 0 .. bound - 1 per stream (multiply-shift; bias below bound / 2**32).

    Args:
        bound: upper bound, from 1 to 2**32 - 1.
    """
    if not 1 <= bound < WORD:
        raise ValueError(f"bound is {bound}; it must lie in 1 .. 2**32 - 1")
    words = _words(streams, purpose, 0, 1)[:, 0]
    return [(int(word) * bound) >> 32 for word in words]


def uniform(streams: Sequence[NoiseStream], purpose: Purpose, step: int) -> torch.Tensor:
    """Return one number in (0, 1) per stream: float64 on the CPU, shape (B,).

    Args:
        step: denoising step of the draw, or index among several of the same kind.
    """
    words = _words(streams, purpose, step, 1)[:, 0].to(torch.float64)
    return (words + 0.5) / WORD
