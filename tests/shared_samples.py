"""By how many devices each sample was made, and how far a sample that changed its degree may be off.

A sample all of whose steps were shared by as many devices in two runs must have the same bits. One that
changed its degree in flight must be close: matrix products of fewer than 16 rows a device round differently.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_runtime.scheduling.history import MEMBERS_JOINED_BY, HistoryLine

NEAR = 1e-5
"""How far the latents of a sample that changed its degree may be from those of the undisturbed run."""


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
