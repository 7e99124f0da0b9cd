"""The text that a prompt quotes, which an image is to show."""

from __future__ import annotations

import re

from storage.errors import PromptFileError

_QUOTED = re.compile(r'"([^"]*)"')


def target_text(prompt: str) -> str:
    """Return the text in the prompt's first double quotes, as it is compared.

    Raises:
        PromptFileError: the prompt quotes nothing.
    """
    match = _QUOTED.search(prompt)
    target = normalise(match.group(1)) if match else ""
    if not target:
        raise PromptFileError(
            f'prompt {prompt!r} has no text in double quotes; the ocr reward needs it, as in: a sign "OPEN"'
        )
    return target


def normalise(text: str) -> str:
    """Lower-case and drop spaces, as both sides of the comparison are."""
    return text.lower().replace(" ", "")
