"""The runtime stage: one trainer and two spot workers on one device, off-policy, with workers killed.

A worker is killed in mid-chunk, and another continues its samples from the last saved step. Then the same run
is done under faults, undisturbed, and without exploration: weights, moving average and optimiser of the first
two are compared, and the time lines show idle time and what exploration adds between iterations.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from benchmarks.gpu.bits import same_samples
from benchmarks.gpu.live_run import LiveRun, live_run
from benchmarks.gpu.stages import Figures, Reporter, Setting
from gpu_runtime.chaos.fault_schedule import Fault
from gpu_runtime.cluster.local_cluster import LocalCluster
from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion
from gpu_runtime.worker import device_worker
from gpu_runtime.worker.protocol import Worker
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.errors import WorkerLostError
from storage.record.records import StateInterval
from ui.elements.palette import STATE_COLOURS, UNKNOWN_COLOUR

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
_WIDTH, _ROW, _LABEL = 1400, 22, 90
"""Pixels in a picture of the time line: its width, a device's row, and the name before it."""


def disturb_runs(setting: Setting, report: Reporter) -> None:
    """Run the stage."""
    settings = [*_SETTINGS, *(_TINY if setting.tiny else _REAL), f"model.device={setting.device}"]
    config = load_config("glyphs-stale", settings, {})

    def figures_of(name: str, run: LiveRun) -> Figures:
        if setting.folder is not None:
            timeline(run.intervals).save(setting.folder / f"timeline-{name}.png")
        times = {"started_s": run.started_s, "iteration_s": statistics.median(run.iteration_s)}
        return {name: {**times, "peak_gib": run.peak_gib}}

    report(**killed_in_mid_chunk(config))
    middle = config.iterations // 2 - 1  # from 0; the iterations after it notice the loss
    kills = [
        Fault(kind="kill", iteration=middle, phase="rollout", victim=0),
        Fault(kind="kill", iteration=middle, phase="train", victim=1),
    ]
    with tempfile.TemporaryDirectory() as folder:
        disturbed = live_run(config.changed(runtime={"history": True}), Path(folder), kills)
    report(faults=disturbed.faults, workers_lost=disturbed.lost, **figures_of("disturbed", disturbed))
    undisturbed = live_run(config)
    report(
        run_bits_equal=disturbed.blobs == undisturbed.blobs,
        **figures_of("undisturbed", undisturbed),
        spot_idle=idle_share(undisturbed.intervals, "spot"),
        reserved_idle=idle_share(undisturbed.intervals, "reserved"),
        runtime_peak_gib=undisturbed.peak_gib,
    )
    exploration = {"strategy": "plain", "drafts": 0, "stop_with_training": True}
    plain = live_run(config.changed(exploration=exploration))
    report(
        **figures_of("plain", plain),
        spot_idle_plain=idle_share(plain.intervals, "spot"),
        added_share=(between_s(undisturbed.intervals) - between_s(plain.intervals))
        / statistics.median(plain.iteration_s),
    )
    if not disturbed.blobs == undisturbed.blobs:
        raise RuntimeError("the run that lost workers ended with other bits than the undisturbed one")


def killed_in_mid_chunk(config: RunConfig) -> Figures:
    """Kill a worker while it computes a chunk; another continues from the last saved states."""
    version = WeightsVersion(0)
    requests = [
        SampleRequest(RequestKind.ROLLOUT, 0, 1, 0, seed, 0, 'a sign that says "K7B"') for seed in range(4)
    ]
    cluster = LocalCluster(config)
    try:
        began = time.monotonic()
        workers = [
            cluster.start(f"chunk-{place}", device_worker, config, True, gpu=True) for place in range(2)
        ]
        for worker in workers:
            worker.call(Worker.use_training_weights, version).result()
        first, second = workers
        loaded_s = time.monotonic() - began
        whole = second.call(Worker.begin_samples, version, 1, requests, 1000).result().samples
        saved = first.call(Worker.begin_samples, version, 2, requests, 2).result().states
        cut = first.call(Worker.advance_samples, 2, 1000)
        first.kill()
        try:
            cut.result()
            lost = False  # it finished before the signal
        except WorkerLostError:
            lost = True
        resumed = second.call(Worker.begin_samples, version, 3, saved, 1000).result().samples
    finally:
        cluster.shutdown()
    pair = [[one for one in made if isinstance(one, GeneratedSample)] for made in (whole, resumed)]
    equal = len(pair[0]) == len(pair[1]) == len(requests) and same_samples(*pair)
    return {"load_s": loaded_s, "killed_in_mid_chunk": lost, "chunk_bits_equal": equal}


def idle_share(intervals: Sequence[StateInterval], market: str) -> float | None:
    """Return the idle share of a market's device time."""
    seconds = [(one.state, one.ended_at - one.started_at) for one in intervals if one.market == market]
    whole_s = sum(taken_s for _, taken_s in seconds)
    return sum(taken_s for state, taken_s in seconds if state == "idle") / whole_s if whole_s else None


def between_s(intervals: Sequence[StateInterval]) -> float:
    """Return the median time from the end of training to the next rollout."""
    ends = sorted(one.ended_at for one in intervals if one.state == "train")
    begins = sorted(one.started_at for one in intervals if one.state == "rollout")
    gaps = []
    for begin in begins:
        before = [end for end in ends if end <= begin]
        earlier = [one for one in begins if before and before[-1] < one < begin]
        if before and not earlier:
            gaps.append(begin - before[-1])
    return statistics.median(gaps) if gaps else 0.0


def timeline(intervals: Sequence[StateInterval]) -> Image.Image:
    """Draw a row per device: its states in the dashboard's colours, with a legend."""
    workers = sorted({one.worker for one in intervals})
    began, ended = min(one.started_at for one in intervals), max(one.ended_at for one in intervals)
    picture = Image.new("RGB", (_WIDTH, _ROW * (len(workers) + 1)), "white")
    draw = ImageDraw.Draw(picture)

    def at(moment: float) -> float:
        return _LABEL + (_WIDTH - _LABEL) * (moment - began) / (ended - began)

    for row, worker in enumerate(workers):
        draw.text((4, _ROW * row + 5), worker, "black")
        for one in (one for one in intervals if one.worker == worker):
            corners = at(one.started_at), _ROW * row, at(one.ended_at), _ROW * (row + 1) - 3
            draw.rectangle(corners, STATE_COLOURS.get(one.state, UNKNOWN_COLOUR))
    for place, (state, colour) in enumerate(STATE_COLOURS.items()):
        draw.text((_LABEL * (place + 1), _ROW * len(workers) + 5), state, colour)
    draw.text((_LABEL * (len(STATE_COLOURS) + 1), _ROW * len(workers) + 5), f"{ended - began:.1f} s", "black")
    return picture
