"""Names of figures for readers, where what stands before the slash is a section of charts."""

from __future__ import annotations

import hashlib
import re

TOTAL_USD = "cost_total_usd"
"""Dollars of a run since its beginning, evaluations included."""

EVALUATION_USD = "cost_evaluation_usd"
"""Dollars of one held-out evaluation."""

EVALUATION = "evaluation_"
"""Beginning of the names of a held-out evaluation's figures."""

QUALITY_FIGURE = f"{EVALUATION}quality_"
"""Beginning of the names of held-out images' figures."""

IMAGE_MS = "ms_per_image/"
"""Beginning of the names of a phase's time for one image, in milliseconds."""

_TRAINING = frozenset(
    {"loss", "kl", "clip_share", "gradient_norm", "ratio_deviation", "training_steps", "groups",
     "groups_dropped", "groups_failed", "ratio_mean", "approx_kl", "clip_fraction", "zero_std_ratio"}
)  # fmt: skip
_SAMPLES = frozenset({"scorer_errors", "samples_returned", "samples_dropped", "commits", "steps_redone"})
_SCORES = ("reward_", "exact_", EVALUATION)
_SECONDS = "_s"
_DOLLARS = "cost_"
_GIVEN = re.compile(r"_part_|\.")
"""In figures that end with a name of the user's: a part of a score, a tag of prompts."""

_REFUSED = re.compile(
    r"[^\w./ -]"
    r"|/(?=/|$)|(?<![^/])\.(?=\.?(?:/|$))"  # MLflow takes names for paths: none may be another's long form
    r"|-(?=u[0-9a-f]{4,6}-)"  # would be read as an escape
)
_MOST_CHARACTERS = 250


def figure_name(figure: str) -> str:
    """Return a figure's name for readers, as in `score/reward_mean` or, of `train_s`, `phase_s/train`."""
    if figure.endswith(_SECONDS) and not _GIVEN.search(figure):
        name = f"phase_s/{figure.removesuffix(_SECONDS)}"
    elif figure.startswith(_DOLLARS):
        name = f"cost/{figure.removeprefix(_DOLLARS)}"
    elif figure.startswith(QUALITY_FIGURE):
        name = f"quality/{figure.removeprefix(QUALITY_FIGURE)}"
    elif figure.startswith(_SCORES):
        name = f"score/{figure}"
    elif figure in _TRAINING:
        name = f"training/{figure}"
    elif figure in _SAMPLES:
        name = f"samples/{figure}"
    elif figure.startswith(IMAGE_MS):
        name = figure
    else:
        name = f"exploration/{figure}"
    return plain(name)


def plain(name: str) -> str:
    """Return a name in the characters that every reader takes; different names stay different.

    Others are escaped: `a:b` -> `a-u003a-b`. A name that is too long is cut and ends with its digest.
    """
    escaped = _REFUSED.sub(lambda found: f"-u{ord(found[0]):04x}-", name)
    if len(escaped) <= _MOST_CHARACTERS:
        return escaped
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{escaped[: _MOST_CHARACTERS - 9].rstrip('./')}-{digest}"
