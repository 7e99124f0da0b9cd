"""How a text that was read from an image is judged by the text that its prompt quotes.

The definition is Flow-GRPO's (arXiv 2505.05470, section 5): one minus the edit distance over the
target's length, 1 where the target is a substring of what was read.
"""

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


def ocr_reward(target: str, read: str) -> float:
    """Return the reward in [0, 1]; both texts normalised, `target` not empty.

    1 if `target` is a substring of `read`, else 1 - min(edit distance, len(target)) / len(target).
    """
    # Imported here: the checks of prompts need only the target.
    from rapidfuzz.distance import Levenshtein

    if target in read:
        return 1.0
    return 1.0 - min(Levenshtein.distance(read, target), len(target)) / len(target)
