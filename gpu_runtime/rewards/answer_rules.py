"""Reads the score from a language model's answer about an image; an unclear answer is refused.

Every function raises `ValueError` with a text that can follow "the last with" in a message.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Mapping
from typing import Any

_NUMBER = re.compile(r"(?<![\w.,])[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?!\w|[.,]\d)")
_FENCED = re.compile(r"```(?:json)?\s*(\{.*\})\s*```", re.DOTALL)
_AROUND_WORDS = " \t\r\n.,;:!*\"'`\u2581\u0120"
"""Characters around a word or a token: blanks, punctuation, and the blanks that tokenizers write."""


def number_in(text: str, highest: float, pattern: str = "") -> float:
    """Return the only number in a text, as in `8`, `8.5/10` or `Score: 8`.

    Args:
        highest: highest number of the scale; after a slash or `out of` it is not a second number.
        pattern: regular expression whose only group is the number; empty for the only one.
    """
    if pattern:
        found = {group.strip() for group in re.findall(pattern, text)}
    else:
        found = set(_NUMBER.findall(re.sub(rf"(?:/|\bout of\b)\s*{highest:g}\b(?!\.\d)", " ", text)))
    if len(found) != 1:
        sought = f" that match reward.options.pattern = {pattern!r}" if pattern else ""
        raise ValueError(f"{len(found) or 'no'} numbers{sought} in the answer {reprlib.repr(text)}")
    (number,) = found
    try:
        return float(number)
    except ValueError as error:
        raise ValueError(f"{reprlib.repr(number)}, not a number, in answer {reprlib.repr(text)}") from error


def number_at(text: str, path: str) -> float:
    """Return a number in a JSON object, which may be in a fenced block.

    Args:
        path: key of the number; a dot steps into an inner object.
    """
    fenced = _FENCED.search(text)
    try:
        value: Any = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON object in the answer {reprlib.repr(text)}") from error
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            raise ValueError(f"no {path!r} in the answer {reprlib.repr(text)}")
        value = value[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{reprlib.repr(value)}, not a number, as {path!r} in answer {reprlib.repr(text)}")
    return value


def scaled(number: float, lowest: float, highest: float) -> float:
    """Return a number on the model's scale as a score in [0, 1].

    Args:
        lowest: number that scores 0.
        highest: number that scores 1.
    """
    if not lowest <= number <= highest:  # false for a NaN
        raise ValueError(
            f"{reprlib.repr(number)} in the answer, which is not from {lowest:g} to {highest:g} "
            "(reward.options.lowest, highest)"
        )
    return (number - lowest) / (highest - lowest)


def yes_share(text: str, tokens: Any) -> tuple[float, str]:
    """Return the probability of yes against no, in [0, 1], and its source.

    It is p(yes) / (p(yes) + p(no)) by the log-probabilities of the first token that is one of the words;
    if the server gives none, 1 or 0 by the answer's first word.

    Args:
        tokens: `logprobs.content` of the answer; None if it has none.
    """
    if not tokens:
        first, *_ = text.split() or [""]
        word = _word(first)
        if not word:
            raise ValueError(f"neither yes nor no as the first word of the answer {reprlib.repr(text)}")
        return float(word == "yes"), "no log-probabilities"
    try:
        token = next((one for one in tokens if _word(one["token"])), None)
        if token is None:
            raise ValueError(f"neither yes nor no among the tokens of the answer {reprlib.repr(text)}")
        # The chosen token may be missing from the list, or be in it a second time.
        listed = {one["token"]: one["logprob"] for one in [token, *(token.get("top_logprobs") or [])]}
        chances = {"yes": 0.0, "no": 0.0}
        for said, logprob in listed.items():
            if word := _word(said):
                # False for a NaN; rounding may lift a certain token a little above 0.
                if not logprob <= 1e-3:
                    raise ValueError(
                        f"log-probability {reprlib.repr(logprob)} in the answer, which is above 0"
                    )
                chances[word] += math.exp(min(logprob, 0.0))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"malformed log-probabilities: {reprlib.repr(tokens)}") from error
    whole = sum(chances.values())
    if whole <= 0:
        raise ValueError("a probability of 0 for both yes and no")
    return chances["yes"] / whole, "log-probabilities"


def _word(token: str) -> str:
    """Return `yes` or `no` if a token is that word; else an empty string."""
    word = token.strip(_AROUND_WORDS).lower()
    return word if word in ("yes", "no") else ""


def message_of(answer: Mapping[str, Any], may_be_cut: bool) -> tuple[str, Any]:
    """Return the text of a chat completion, and its tokens with log-probabilities (None without).

    Args:
        may_be_cut: True if an answer that was cut off at its token limit will do.
    """
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"]
        reason = choice.get("finish_reason")
        tokens = (choice.get("logprobs") or {}).get("content")
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"an answer that is not a chat completion: {reprlib.repr(answer)}") from error
    if not isinstance(text, str):
        raise ValueError(f"{reprlib.repr(text)} as the text of the answer")
    if reason == "content_filter" or (reason == "length" and not may_be_cut):
        limit = "it is longer than reward.options.tokens" if reason == "length" else "its server filtered it"
        raise ValueError(f"an incomplete answer, as {limit}: {reprlib.repr(text)}")
    return text, tokens
