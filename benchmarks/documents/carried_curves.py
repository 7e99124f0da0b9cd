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
    """A file of `presets/curves`, as text."""
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
    texts = []
    for arm, found in measured.items():
        curves = ({"iterations": one["iterations"], "values": one["exact"]} for one in found["curves"])
        lines_of_arm = ",\n".join(f"      {json.dumps(curve)}" for curve in curves)  # one a run seed
        texts.append(f"    {json.dumps(arm)}: [\n{lines_of_arm}\n    ]")
    return "\n".join(["{", *lines, '  "arms": {', ",\n".join(texts), "  }", "}", ""])
