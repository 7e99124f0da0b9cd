"""How far two runs that share samples are apart, and by how many devices each sample was made.

A sample all of whose steps were shared by as many devices in both runs must have the same bits. One that
changed its degree in flight must be close: matrix products of fewer than 16 rows a device round differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load

from gpu_runtime.runtime import Rollout
from gpu_runtime.scheduling.history_check import MEMBERS_JOINED_BY, HistoryLine
from gpu_runtime.worker.history_log import names_of

NEAR = 1e-5
"""How far the latents of a sample that changed its degree may be from those of the undisturbed run."""


def keep_iteration(folder: Path, iteration: int, rolled: Rollout, blobs: dict[str, bytes]) -> None:
    """Write an iteration's latents and the weights after it into a file.

    Args:
        folder: of the run; made where it is missing.
        iteration: its number.
        rolled: its samples.
        blobs: the trainer's state after the iteration.
    """
    folder.mkdir(exist_ok=True)
    samples = [delivered.sample for delivered in rolled.delivered]
    weights = load(blobs["weights.safetensors"])
    np.savez(
        folder / f"{iteration:04}.npz",
        names=np.array(names_of(sample.request for sample in samples)),
        latents=np.stack([sample.latents_SC for sample in samples]),
        weights=np.concatenate([weights[name].ravel() for name in sorted(weights)]),
    )


def degrees_of(lines: Iterable[HistoryLine]) -> dict[str, tuple[int, ...]]:
    """By how many devices each denoising step of every accepted sample was shared, by the sample's name."""
    committed: dict[str, tuple[int, ...]] = {}
    planned: dict[int, dict[str, tuple[int, ...]]] = {}
    found: dict[str, tuple[int, ...]] = {}
    for line in lines:
        facts = line.facts
        if line.event == "generate":
            committed = {}
        elif line.event == "lease":
            degree, begin = len(facts["worker"].split(MEMBERS_JOINED_BY)), facts["step"]
            own = (degree,) * (facts["until"] - begin)
            planned[facts["lease"]] = {
                name: committed.get(name, ())[:begin] + own for name in facts["requests"]
            }
        elif line.event == "commit":
            for name, degrees in planned[facts["lease"]].items():
                if facts["step"] > len(committed.get(name, ())):
                    committed[name] = degrees[: facts["step"]]
        elif line.event == "deliver":
            found |= {name: planned[facts["lease"]][name] for name in facts["accepted"]}
    return found


def compare(
    one: Path, other: Path, one_degrees: dict[str, tuple[int, ...]], other_degrees: dict[str, tuple[int, ...]]
) -> dict[str, Any]:
    """How far two runs are apart, iteration by iteration.

    Args:
        one: folder of the first run's iterations.
        other: of the second one's.
        one_degrees: of its samples, as `degrees_of` gives them.
        other_degrees: of the second one's.
    """
    same: list[float] = []
    changed: list[float] = []
    weights: list[float] = []
    for file in sorted(one.glob("*.npz")):
        if not (other / file.name).exists():
            continue
        a, b = np.load(file), np.load(other / file.name)
        assert a["names"].tolist() == b["names"].tolist(), "both runs plan the same samples"
        apart = np.abs(a["latents"] - b["latents"]).max(axis=(1, 2))
        for name, distance in zip(a["names"].tolist(), apart.tolist(), strict=True):
            (same if one_degrees[name] == other_degrees[name] else changed).append(distance)
        weights.append(float(np.abs(a["weights"] - b["weights"]).max()))
    return {
        "iterations_compared": len(weights),
        "samples_of_same_degrees": len(same),
        "samples_of_same_degrees_max_difference": max(same, default=0.0),
        "samples_that_changed_degree": len(changed),
        "samples_that_changed_degree_max_difference": max(changed, default=0.0),
        "weights_max_difference": max(weights, default=0.0),
        "iterations_with_identical_weights": sum(distance == 0 for distance in weights),
    }


def broken(figures: dict[str, Any]) -> Sequence[str]:
    """The promises to shared samples that were broken, in words."""
    said: list[str] = []
    if figures["samples_of_same_degrees_max_difference"] > 0:
        said.append(
            "samples made at the same degrees differ by "
            f"{figures['samples_of_same_degrees_max_difference']:.3g}, not by 0"
        )
    if figures["samples_that_changed_degree_max_difference"] > NEAR:
        said.append(
            "samples that changed their degree differ by "
            f"{figures['samples_that_changed_degree_max_difference']:.3g}; the limit is {NEAR:g}"
        )
    return said
