"""The tokens of an embedded model's prompts; without torch."""

from __future__ import annotations

import re

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
