"""The flow that retrains the embedded models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow

from flows.process.ended_flow_runs import note_process
from flows.progress import reporter
from tasks.pretrain import pretrain_model

_TRAINING_STEPS_A_LINE = 100


@flow(name="pretrain", persist_result=False, on_running=[note_process])
def pretrain(model: str, out: str, seed: int = 0) -> dict[str, Any]:
    """Make an embedded model: render images, train by flow matching, save.

    Args:
        model: `edits`, `glyphs`, `glyphs-guided`, `moving-shapes` or `shapes`.
        out: folder for `MODEL` and, if it exists, `MODEL-sparse`; must be new or empty.
        seed: seed of weights, pictures and noise; the same seed gives the same weights.

    Returns:
        Sizes, losses and CPU seconds.
    """

    def progress(done: int, total: int, loss: float) -> None:
        if done % _TRAINING_STEPS_A_LINE == 0 or done == total:
            reporter().note(f"training step {done}/{total}: loss {loss:.4f}")

    return pretrain_model(model, Path(out), seed, progress)
