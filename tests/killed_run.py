"""What tests that kill runs share: a run never killed, to be equal to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.resume import start, state_of


def undisturbed_state(home: Path, settings: Sequence[str]) -> dict[str, bytes]:
    """The final state of a run that nobody disturbs; what a killed one has to end with."""
    child = start(home, "undisturbed", "train", settings=settings)
    child.communicate(timeout=400)
    assert child.returncode == 0
    return state_of(home, "undisturbed")
