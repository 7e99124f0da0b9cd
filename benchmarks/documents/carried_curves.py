"""Learning curves that the product carries for `spotlight what-if`, from kept results of `exploration`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

REWARDS = {"ocr": ("ocr",), "shapes": ("shapes", "geneval")}
"""The scorers whose runs the curves of a task stand for."""

MODELS = {"ocr": "embedded:glyphs-sparse", "shapes": "embedded:shapes"}

_SIZE = "1.1 million parameters"  # of each of them

ARMS = {
    "grpo": {"plain": "plain", "stale": "stale_grpo"},
    "nft": {"plain": "plain_nft", "stale": "stale", "fresh": "fresh", "larger_batch": "larger_batch"},
}
"""By objective: the benchmark's arm of each arm that the simulator knows."""


def carried_curves(task: str, objective: str, figures: Mapping[str, Any]) -> str:
    """A file of `presets/curves`, as text.

    Args:
        task: `ocr` or `shapes`.
        objective: `grpo` or `nft`.
        figures: of the benchmark `exploration`; arms that it lacks are left out.
    """
    arms = figures["arms"]
    measured = {arm: arms[name] for arm, name in ARMS[objective].items() if name in arms}
    seeds = ", ".join(f"{len(found['run_seeds'])} of {arm}" for arm, found in measured.items())
    drafts = max(found["drafts"] for found in measured.values())
    model = f"the embedded model `{MODELS[task].partition(':')[2]}`"
    head = {
        "name": f"{task}-{objective}",
        "summary": f"share of exact answers of {model}, run seeds: {seeds}; about {drafts:.0f} drafts "
        "an iteration where it explores",
        "source": f"benchmarks/results/exploration-{task}.json",
        "rewards": REWARDS[task],
        "objective": objective,
        "model": MODELS[task],
        "learner": f"{model} of {_SIZE}",
        "more_per_sample": round(drafts / measured["plain"]["rollouts"], 2),
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    texts = [f"    {json.dumps(arm)}: [\n{_curves(found)}\n    ]" for arm, found in measured.items()]
    return "\n".join(["{", *lines, '  "arms": {', ",\n".join(texts), "  }", "}", ""])


def _curves(arm: Mapping[str, Any]) -> str:
    """One line a run seed."""
    return ",\n".join(
        "      " + json.dumps({"iterations": curve["iterations"], "values": curve["exact"]})
        for curve in arm["curves"]
    )
