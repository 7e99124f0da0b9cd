"""A frozen text encoder without weights and without torch: a token's vector follows from its spelling alone.

A small transformer learns the meaning of random but fixed vectors as readily as that of learned ones, and
no vocabulary has to be shipped. Text in double quotes is spelled out, so that a model can draw it.

Shape suffixes: B prompts, L text tokens (fixed), E width.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from storage.errors import ConfigurationError

_PIECE = re.compile(r'"[^"]*"|[^\s",.!?;:]+')


def tokenize(prompt: str) -> list[str]:
    """Split a prompt into lower-case words; quoted text into its characters, case kept.

    A character's token carries its index in the quotation: `"K7"` gives `char:0:K`, `char:1:7`.
    """
    tokens: list[str] = []
    for piece in _PIECE.findall(prompt):
        if piece.startswith('"'):
            tokens += [f"char:{place}:{character}" for place, character in enumerate(piece[1:-1])]
        else:
            tokens.append(f"word:{piece.lower()}")
    return tokens


def fitting_tokens(prompt: str, length: int) -> list[str]:
    """Return the tokens of a prompt that a model can encode.

    Raises:
        ConfigurationError: if it has more than `length` tokens, or none.
    """
    tokens = tokenize(prompt)
    if not 0 < len(tokens) <= length:
        raise ConfigurationError(
            f"prompt {prompt!r} has {len(tokens)} tokens; this model takes 1 to {length} "
            "(a word is one, and so is each character in quotes); change the prompt"
        )
    return tokens


@lru_cache(maxsize=65536)
def _token_vector(token: str, width: int) -> np.ndarray:
    """Return `width` standard normal float32 numbers that depend on the token alone."""
    digest = hashlib.blake2b(token.encode(), digest_size=16).digest()
    key = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).standard_normal(width, dtype=np.float32)


def encode(prompts: Sequence[str], length: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Encode B prompts to float32 (B, length, width), padded with zeros, and a mask of the real tokens.

    The length never depends on the batch: a prompt has the same bits in any list.

    Args:
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
    return embeds_BLE, mask_BL
