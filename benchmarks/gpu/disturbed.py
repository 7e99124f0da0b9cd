"""The stage on the runtime: one trainer and two spot workers on one device, off-policy, with workers killed.

A run is done under faults, undisturbed, and without exploration: weights, moving average and optimiser of the
first two are compared, and the time lines show how much devices idle and what exploration adds between
iterations.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.live_run import LiveRun, live_run
from benchmarks.gpu.stages import Figures, Reporter, Setting
from gpu_runtime.chaos.fault_schedule import Fault
from storage.config.loading import load_config
from storage.record.records import StateInterval

_SETTINGS = (
    "exploration.strategy=off_policy", "exploration.stop_with_training=false", "reward.scorer=ocr",
    "reward.options={}", "evaluation.every=0", "runtime.reserved_workers=1", "runtime.spot_workers=2",
    "runtime.commit_steps=2", "runtime.start_timeout_s=120",
)  # fmt: skip
_REAL = (
    "iterations=4", "algorithm.prompts_per_iteration=16", "exploration.candidates=12",
    "exploration.drafts=96", "runtime.scorer_workers=6",
)  # fmt: skip
_TINY = (
    "iterations=2", "algorithm.prompts_per_iteration=4", "algorithm.updates_per_iteration=1",
    "exploration.candidates=6", "exploration.drafts=16", "exploration.monitor_prompts=1",
    "runtime.scorer_workers=1",
)  # fmt: skip


def disturb_runs(setting: Setting, report: Reporter) -> None:
    """Run the stage."""
    config = load_config("glyphs-stale", [*_SETTINGS, *(_TINY if setting.tiny else _REAL)], {})
    model = config.model.model_copy(update={"device": setting.device})
    config = config.model_copy(update={"model": model})

    def figures_of(run: LiveRun) -> Figures:
        times = {"started_s": run.started_s, "iteration_s": statistics.median(run.iteration_s)}
        return times | {"peak_gib": run.peak_gib}

    middle = config.iterations // 2 - 1  # from 0; the iterations after it notice the loss
    kills = [
        Fault("kill", iteration=middle, phase="rollout", victim=0),
        Fault("kill", iteration=middle, phase="train", victim=1),
    ]
    with tempfile.TemporaryDirectory() as folder:
        disturbed = live_run(config.model_copy(update={"runtime": config.runtime.model_copy(
            update={"history": True})}), Path(folder), kills)  # fmt: skip
    report(faults=disturbed.faults, workers_lost=disturbed.lost, disturbed=figures_of(disturbed))
    undisturbed = live_run(config)
    report(
        run_bits_equal=disturbed.blobs == undisturbed.blobs,
        undisturbed=figures_of(undisturbed),
        spot_idle=idle_share(undisturbed.intervals, "spot"),
        reserved_idle=idle_share(undisturbed.intervals, "reserved"),
        runtime_peak_gib=undisturbed.peak_gib,
    )
    exploration = config.exploration.model_copy(
        update={"strategy": "plain", "drafts": 0, "stop_with_training": True}
    )
    plain = live_run(config.model_copy(update={"exploration": exploration}))
    report(
        plain=figures_of(plain),
        spot_idle_plain=idle_share(plain.intervals, "spot"),
        added_share=(between_s(undisturbed.intervals) - between_s(plain.intervals))
        / statistics.median(plain.iteration_s),
    )
    if not disturbed.blobs == undisturbed.blobs:
        raise RuntimeError("the run that lost workers ended with other bits than the undisturbed one")


def idle_share(intervals: Sequence[StateInterval], market: str) -> float | None:
    """Share of a market's device time that is idle; None without such devices."""
    lasting = [(one.state, one.ended_at - one.started_at) for one in intervals if one.market == market]
    whole_s = sum(seconds for _, seconds in lasting)
    return sum(seconds for state, seconds in lasting if state == "idle") / whole_s if whole_s else None


def between_s(intervals: Sequence[StateInterval]) -> float:
    """Median time from the end of training to the next rollout."""
    ends = [one.ended_at for one in intervals if one.state == "train"]
    begins = [one.started_at for one in intervals if one.state == "rollout"]
    # After each training, the rollout that begins first.
    last_ends = [max(before) for begin in begins if (before := [end for end in ends if end <= begin])]
    gaps = [min(begin for begin in begins if begin >= end) - end for end in set(last_ends)]
    return statistics.median(gaps) if gaps else 0.0
