"""A frozen text encoder without weights: a token's vector is a pure function of its spelling.

A small transformer learns the meaning of random but fixed vectors as readily as that of learned ones, and
no vocabulary has to be shipped. Text in double quotes is spelled out, so that a model can draw it.

Shape suffixes: B prompts, L text tokens (fixed), E width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from gpu_runtime.models.embedded.text_tokens import fitting_tokens
from gpu_runtime.models.protocol import Conditioning


@lru_cache(maxsize=65536)
def _token_vector(token: str, width: int) -> np.ndarray:
    """Return `width` standard normal float32 numbers that depend on the token alone."""
    digest = hashlib.blake2b(token.encode(), digest_size=16).digest()
    key = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).standard_normal(width, dtype=np.float32)


def encode(prompts: Sequence[str], length: int, width: int) -> Conditioning:
    """Encode B prompts to (B, length, width) float32 with padding of zeros, on the CPU.

    The length never depends on the batch: a prompt has the same bits in any list.

    Args:
        prompts: B texts.
        length: text tokens L.
        width: width E of a token's embedding.

    Raises:
        ConfigurationError: if a prompt has more than `length` tokens, or none.
    """
    embeds_BLE = np.zeros((len(prompts), length, width), dtype=np.float32)
    mask_BL = np.zeros((len(prompts), length), dtype=bool)
    for row, prompt in enumerate(prompts):
        tokens = fitting_tokens(prompt, length)
        embeds_BLE[row, : len(tokens)] = [_token_vector(token, width) for token in tokens]
        mask_BL[row, : len(tokens)] = True
    return Conditioning(torch.from_numpy(embeds_BLE), torch.from_numpy(mask_BL))
