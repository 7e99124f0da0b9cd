"""Uneven workers on real Ray, and one phase of generating on them, pulled or pushed; for push_or_pull.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, cast

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.cluster.ray.ray_cluster import RayCluster
from gpu_runtime.diffusion.samples import SampleState
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.sample_phase import SamplePhase
from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion
from gpu_runtime.scheduling.work_left import WorkLeft
from gpu_runtime.simulator.push_dispatch import PushDispatch
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.protocol import Worker
from gpu_runtime.worker.sample_chunk import SampleChunk
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.errors import WorkerLostError
from storage.prompts.of_a_run import load_run_prompts
from storage.record.records import DeviceState

STEP_S = (0.4, 0.4, 0.8, 1.2)
"""Seconds of a denoising step of a batch, a worker each: far more than the model takes for it."""

_VICTIM = 1

_PROMPTS, _GROUP = 12, 16
_WEIGHTS = WeightsVersion(0)
_SETTINGS = ("runtime.spot_workers=3", "runtime.scorer_workers=1", "runtime.commit_steps=4")


class UnevenWorker(DeviceWorker):
    """A worker whose steps take at least so long: it sleeps for what is left.

    Args:
        config: the run's configuration.
        step_s: seconds of a denoising step of a batch.
    """

    def __init__(self, config: RunConfig, step_s: float) -> None:
        super().__init__(config, trains=False)
        self._step_s = step_s
        self._late_s = 0.0
        self.use_training_weights(_WEIGHTS)

    def late_s(self) -> float:
        """By how much its steps took longer than set, since the last call."""
        late_s, self._late_s = self._late_s, 0.0
        return late_s

    def begin_samples(
        self, version: WeightsVersion, lease: int, work: Sequence[SampleRequest | SampleState], steps: int
    ) -> SampleChunk:
        """As of a worker."""
        return self._slowly(
            steps, lambda: super(UnevenWorker, self).begin_samples(version, lease, work, steps)
        )

    def advance_samples(self, lease: int, steps: int) -> SampleChunk:
        """As of a worker."""
        return self._slowly(steps, lambda: super(UnevenWorker, self).advance_samples(lease, steps))

    def _slowly(self, steps: int, work: Any) -> SampleChunk:
        began = time.monotonic()
        chunk = work()
        left_s = steps * self._step_s - (time.monotonic() - began)
        self._late_s += max(0.0, -left_s)
        time.sleep(max(0.0, left_s))
        return chunk


class UnevenFleet:
    """What the loop needs of a fleet, with a victim that is killed in the midst of a phase.

    Args:
        devices: the first one stays.
        kill: asked after each chunk until it is true: then the victim is killed.
    """

    def __init__(self, devices: list[Device], kill: Callable[[], bool] = lambda: False) -> None:
        self.devices = devices
        self._kill = kill
        self._victim = devices[_VICTIM] if len(devices) > _VICTIM else None
        self.lost: list[str] = []

    def workers(self, version: WeightsVersion) -> list[Device]:
        """As of the fleet."""
        return [device for device in self.devices if device.holds == version]

    def add_ready_workers(self) -> list[Future[Any]]:
        """None."""
        return []

    forming = False

    def regroups(self, left: Callable[[], WorkLeft], freed: bool) -> bool:
        """As of the fleet."""
        return False

    def enter(self, worker: str, state: DeviceState) -> None:
        """States are not booked here."""

    def on_notice(self, device: Device, notice: Notice | None) -> None:
        """A chunk is there; no device is under notice here."""
        if self._victim is not None and self._kill():
            self._victim.actor.kill()
            self._victim = None

    def on_worker_lost(self, device: Device, error: WorkerLostError) -> None:
        """As of the fleet."""
        self.devices.remove(device)
        self.lost.append(device.name)

    def kill_hung_worker(self, device: Device, reason: str) -> None:
        """As of the fleet."""
        device.actor.kill()
        self.on_worker_lost(device, WorkerLostError(reason))


@dataclass(frozen=True)
class Measured:
    """Phases each way, in turns.

    Attributes:
        ratios: pushed over pulled, a turn each.
        pulled_s, pushed_s: seconds on the wall, a turn each.
        samples: of a phase.
        step_s: of a denoising step of a batch, a worker each.
        killed: workers that were killed, one a phase.
        late_share: by how much steps took longer than set, over the phases' device-seconds: what the machine
            was too slow for.
        same_samples: all phases gave the same images to the bit.
    """

    ratios: list[float]
    pulled_s: list[float]
    pushed_s: list[float]
    samples: int
    step_s: tuple[float, ...]
    killed: int
    late_share: float
    same_samples: bool


def measured(turns: int) -> Measured:
    """Run the phase both ways on one cluster, in turns; the one that was killed is started anew."""
    config = load_config("glyphs", _SETTINGS, {})
    prompts = load_run_prompts(config)[0][:_PROMPTS]
    requests = [
        SampleRequest(
            RequestKind.ROLLOUT, config.seed, 1, prompt.prompt_id, seed, 0, prompt.text, source=prompt.source
        )
        for prompt in prompts
        for seed in range(_GROUP)
    ]
    phases: list[_Phase] = []
    cluster = RayCluster(config)
    try:
        devices = _started(cluster, config, range(len(STEP_S)))
        for turn in range(2 * turns):
            phases.append(_phase(devices, config, requests, pushes=turn % 2 == 1))
            if turn < 2 * turns - 1:
                devices[_VICTIM : _VICTIM + 1] = _started(cluster, config, [_VICTIM])
    finally:
        cluster.shutdown()
    pulled, pushed = phases[::2], phases[1::2]
    return Measured(
        ratios=[push.took_s / pull.took_s for pull, push in zip(pulled, pushed, strict=True)],
        pulled_s=[phase.took_s for phase in pulled],
        pushed_s=[phase.took_s for phase in pushed],
        samples=len(requests),
        step_s=STEP_S,
        killed=sum(len(phase.lost) for phase in phases),
        late_share=sum(phase.late_s for phase in phases)
        / sum(len(STEP_S) * phase.took_s for phase in phases),
        same_samples=all(
            (phase.images[request] == phases[0].images[request]).all()
            for phase in phases
            for request in requests
        ),
    )


@dataclass(frozen=True)
class _Phase:
    took_s: float
    images: dict[SampleRequest, Any]
    lost: list[str]
    late_s: float


def _started(cluster: RayCluster, config: RunConfig, places: Iterable[int]) -> list[Device]:
    """Workers with their speeds, loaded; each has done some steps, since a process's first are slow."""
    devices = [
        Device(
            cluster.start(f"uneven-{place}", UnevenWorker, config, STEP_S[place], gpu=True), "spot", _WEIGHTS
        )
        for place in places
    ]
    prompt = load_run_prompts(config)[0][0]
    warm = [
        SampleRequest(
            RequestKind.EVALUATE, 0, 0, prompt.prompt_id, seed, 0, prompt.text, source=prompt.source
        )
        for seed in range(16)
    ]
    for call in [device.actor.call(Worker.begin_samples, _WEIGHTS, -1, warm, 2) for device in devices]:
        call.result()
    return devices


def _late_s(device: Device) -> float:
    return cast("RemoteActor[UnevenWorker]", device.actor).call(UnevenWorker.late_s).result()


def _phase(devices: list[Device], config: RunConfig, requests: list[SampleRequest], pushes: bool) -> _Phase:
    size, lease_s = config.sampling.batch_size, config.runtime.lease_s
    names = [device.name for device in devices]
    scheduler: PullScheduler[SampleRequest] = PullScheduler(size, lease_s, size)
    if pushes:
        scheduler = PushDispatch(size, lease_s, size, names, 0)
    phase = SamplePhase(requests, config.sampling)
    fleet = UnevenFleet(list(devices), lambda: 4 * phase.done >= len(requests))
    for device in devices:
        _late_s(device)
    began = time.monotonic()
    Dispatcher(config, scheduler=scheduler).run(fleet, phase)
    took_s = time.monotonic() - began
    images = {one.sample.request: one.sample.image_HWC for one in phase.delivered}
    late_s = sum(_late_s(device) for device in fleet.devices)
    return _Phase(took_s, images, fleet.lost, late_s)
