"""Every colour of the dashboard and the report: one meaning per colour, on light and dark pages.

`tests/unit/ui/test_charts.py` measures the colours of states, markets, runs and levels as people with
protanopia, deuteranopia and tritanopia see them. Any two states can touch in a bar, so all pairs of them
differ in hue and in luminance. Patterns, marker shapes and dashes distinguish further meanings.
"""

from __future__ import annotations

STATE_COLOURS = {
    "rollout": "#318bf4",
    "explore": "#2c7e52",
    "train": "#632891",
    "load": "#b39f37",
    "regroup": "#5addfe",
    "idle": "#b4b5b7",
    "lost": "#af2500",
}
"""The states of a device, in the order of the legend."""

MARKET_COLOURS = {"reserved": "#80562d", "spot": "#fea65d"}  # markets of devices, in the order of the legend

RUN_COLOURS = (
    "#00afff", "#fb7432", "#009e1a", "#fa6ab4", "#47682a", "#b3664d", "#00d6fa", "#a6956a",
)  # fmt: skip
"""Runs side by side; no more can be compared. `RUN_SYMBOLS` tells them apart too."""

RUN_SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down", "star")

DEGREE_COLOURS = ("#f7c6dd", "#ee8fb8", "#d2508a", "#9c2a66", "#5e1440")
"""Degrees from a device that works alone to many that share."""

SCORE_COLOUR = "#3f51d8"  # held-out score, and the main figure of a chart
SAMPLES_COLOUR = "#6b7785"  # training's own samples, and other data to compare with the main figure
DRAFT_COLOUR = "#0d9488"  # data computed from drafts
REFERENCE_COLOUR = "#d9487d"  # reference lines: a limit, a level before training, the end of an iteration
EVENT_COLOUR = "#22262e"  # marks of events, with a white outline; their shapes tell them apart
UNKNOWN_COLOUR = "#828c96"  # a state or an event unknown to this version

LEVEL_COLOURS = {"problem": "#ca3939", "warning": "#c97513", "passed": "#1f9d61"}
"""Texts of findings, verdicts and errors."""


def faded(colour: str, opacity: float) -> str:
    """Return a colour (`#rrggbb`) as CSS `rgba()` with an opacity from 0 to 1."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"
