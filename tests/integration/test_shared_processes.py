"""Samples that real workers share, in processes without Ray: kills, hangs, bits, the trainer's check."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gpu_runtime.cluster.local_cluster import LocalActor
from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.sample_phase import Delivered, SamplePhase
from gpu_runtime.groups.grouped_fleet import GroupedFleet
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.scheduling.group_layout import GroupRegistry, WorkerGroup
from gpu_runtime.scheduling.history import check_history
from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from gpu_runtime.sequence_parallel.control_store import ControlStore, StoreAddress
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.spot.notices.simulated_service import SimulatedNotices
from gpu_runtime.worker.history import HistoryLog, names_of, new_life, read_history
from gpu_runtime.worker.protocol import Worker
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.config.runtime import WORKER_IN_URL
from storage.errors import GroupBrokenError
from tests.running_up import wait_until
from tests.shared_samples import NEAR, degrees_of
from tests.sharing_processes import forking_context
from tests.worker_processes import WEIGHTS, ProcessFleet, process_fleet

pytestmark = pytest.mark.xdist_group("sharing")

SETTINGS = [
    "sampling.batch_size=4", "sampling.rollout_steps=6", "sampling.window_stop=5", "runtime.commit_steps=1",
    "runtime.lease_s=40",
]  # fmt: skip
REQUESTS = [
    SampleRequest(RequestKind.ROLLOUT, 0, 1, prompt, seed, 0, f'a red sign that says "A{prompt}C"')
    for prompt in range(4)
    for seed in range(4)
]
WEIGHT = {2: {1: 1.0, 2: 1 / 4}, 4: {1: 1.0, 2: 1 / 4, 4: 1 / 16}}


def configuration(degree: int) -> RunConfig:
    return load_config(
        "smoke", [*SETTINGS, "runtime.spot_workers=3", f"sequence_parallel.rollout={degree}"], {}
    )


@dataclass
class Phase:
    """What one phase of generating made, and how."""

    delivered: list[Delivered]
    degrees: dict[str, tuple[int, ...]]
    loop: Dispatcher
    scheduler: PullScheduler[SampleRequest]
    groups: GroupedFleet

    def apart(self, samples: list[GeneratedSample]) -> dict[str, float]:
        """The largest difference of each sample's latents, by name."""
        pairs = zip(self.delivered, samples, strict=True)
        far = [float(np.abs(a.sample.latents_SC - b.latents_SC).max()) for a, b in pairs]
        return dict(zip(names_of(one.sample.request for one in self.delivered), far, strict=True))


def generate(
    fleet: ProcessFleet,
    config: RunConfig,
    history: Path,
    book: GroupRegistry,
    strike: Callable[[Device], bool] = lambda group: True,
    scheduler: PullScheduler[SampleRequest] | None = None,
    requests: Sequence[SampleRequest] = REQUESTS,
) -> Phase:
    """One phase; `strike` is asked after each chunk of a group until it says that it has struck."""
    folder = history / "0001"
    degree = config.sequence_parallel.rollout
    log = HistoryLog(folder, "driver")
    groups = GroupedFleet(
        fleet, WEIGHTS, WEIGHT[degree], fleet.store, book, lambda device: "", config.runtime.lease_s
    )
    scheduler = scheduler or PullScheduler[SampleRequest]()
    loop, phase = (
        Dispatcher(config.runtime, config.sampling.batch_size, history=log, scheduler=scheduler),
        SamplePhase(requests, config.sampling),
    )
    on_chunk, struck = groups.on_notice, False

    def strike_on_chunk(device: Device, notice: Notice | None) -> None:
        nonlocal struck
        struck = struck or strike(device)
        on_chunk(device, notice)

    groups.on_notice = strike_on_chunk  # type: ignore[method-assign]
    try:
        loop.run(groups, phase)
        delivered = phase.delivered
    finally:
        groups.close()
        log.close()
    return Phase(delivered, degrees_of(read_history(history)), loop, scheduler, groups)


def alone(config: RunConfig) -> list[GeneratedSample]:
    worker = DeviceWorker(config, trains=False)
    worker.use_training_weights(WEIGHTS)
    return worker.generate(REQUESTS)


def strike_after_chunks(
    victim: LocalActor[DeviceWorker], number: signal.Signals, chunks: int
) -> Callable[[Device], bool]:
    """Sends a worker a signal once its group has done so many chunks, so in the midst of a lease."""
    left = chunks

    def strike(group: Device) -> bool:
        nonlocal left
        left -= victim.name in group.name.split("+")
        if not left:
            os.kill(victim.pid, number)
        return not left

    return strike


@pytest.mark.parametrize(
    ("degree", "number", "victim"),
    [
        (2, signal.SIGKILL, "spot-0"),
        (4, signal.SIGKILL, "spot-2"),
        pytest.param(2, signal.SIGSTOP, "spot-2", marks=pytest.mark.slow),
    ],
)
def test_a_member_struck_in_mid_lease_loses_nothing_and_the_trainer_takes_the_samples(
    tmp_path: Path, degree: int, number: signal.Signals, victim: str
):
    config = configuration(degree)
    life = new_life(tmp_path)
    with process_fleet(config, 3, str(life)) as fleet:
        book = GroupRegistry()
        calm = generate(fleet, config, tmp_path, book)
        assert {steps for steps in calm.degrees.values()} == {(degree,) * 6}

        strike = strike_after_chunks(fleet.actors[victim], number, 2)
        rough = generate(fleet, config, tmp_path, book, strike, calm.scheduler)
        assert fleet.lost == [victim]
        assert check_history(read_history(tmp_path)).broken() == []
        expected = [one.sample for one in calm.delivered]
        for name, distance in rough.apart(expected).items():
            same = rough.degrees[name] == calm.degrees[name]
            assert distance <= (0.0 if same else NEAR), (name, rough.degrees[name])
        assert "regroup" in fleet.states["reserved-0"][1:]

        shared = [
            TrainingSample(one.sample.request, one.sample.trajectory, one.sample.latents_SC, (-1.0) ** place)
            for place, one in enumerate(rough.delivered)
        ]
        report = fleet.actors["reserved-0"].call(Worker.train, shared).result()
        assert report.ratio_deviation <= config.algorithm.ratio_tolerance
    assert max(calm.apart(alone(config)).values()) <= NEAR


def form(fleet: ProcessFleet, group: WorkerGroup, names: Sequence[str]) -> list[Future]:
    return [fleet.actors[name].call(Worker.join_group, group, 120.0) for name in names]


def test_members_that_wait_for_one_that_never_comes_are_freed_and_meet_again(tmp_path: Path):
    with process_fleet(configuration(2), 1, str(new_life(tmp_path))) as fleet:
        members = "reserved-0", "spot-0"
        first = WorkerGroup(1, 0, members)
        os.kill(fleet.actors["spot-0"].pid, signal.SIGSTOP)
        (waiting,) = form(fleet, first, ["reserved-0"])
        with pytest.raises(TimeoutError):
            waiting.result(timeout=1.0)  # long enough to be in the midst of forming the group
        fleet.store.abort(first.prefix)
        with pytest.raises(GroupBrokenError):
            waiting.result(timeout=120.0)
        os.kill(fleet.actors["spot-0"].pid, signal.SIGCONT)
        late = form(fleet, first, ["spot-0"])[0]  # to a group that is over
        with pytest.raises(GroupBrokenError):
            late.result(timeout=120.0)
        for joined in form(fleet, WorkerGroup(2, 0, members), members):
            joined.result(timeout=120.0)


def see_no_abort(store: object) -> bool:
    """In the place of the watch's look: the worker itself is to find the abort, over its own connection."""
    return False


def standby_that_joins() -> None:
    store, group = ControlStore(), WorkerGroup(1, 0, ("spot-0", "spot-1"))
    worker = DeviceWorker(configuration(2), trains=False, name="standby-0", meeting=store.address)
    del StoreAddress.connect
    worker.take_slot("spot-0", False, None)
    assert worker._member is not None
    worker._member._watch._look = see_no_abort  # type: ignore[method-assign]
    store.abort(group.prefix)
    with pytest.raises(GroupBrokenError, match="broken off before it was formed"):
        worker.join_group(group, 120.0)
    os._exit(0)  # at once, as its threads watch the store


def late_member_that_joins_again() -> None:
    store, late, next_one = ControlStore(), *(WorkerGroup(epoch, 0, ("spot-0", "spot-1")) for epoch in (1, 2))
    worker = DeviceWorker(configuration(2), trains=False, name="spot-0", meeting=store.address)
    assert worker._member is not None
    watch, leave = worker._member._watch, worker._member.leave

    def leave_late() -> None:
        while watch._prefix is not None and not watch.broken:  # then it has shut the connection down
            time.sleep(0.01)
        leave()

    for group in (late, next_one):
        store.abort(group.prefix)
    worker._member.leave = leave_late  # type: ignore[method-assign]
    with pytest.raises(GroupBrokenError, match="was broken off"):  # as the store says, or a shut connection
        worker.join_group(late, 120.0)
    watch._look, worker._member.leave = see_no_abort, leave  # type: ignore[method-assign]
    with pytest.raises(GroupBrokenError, match="broken off before it was formed"):
        worker.join_group(next_one, 120.0)
    os._exit(0)


@pytest.mark.parametrize("work", [standby_that_joins, late_member_that_joins_again])
def test_a_worker_that_joins_has_a_connection(work: Callable[[], None]):
    process = forking_context().Process(target=work)
    process.start()
    process.join(120)
    assert process.exitcode == 0


def test_a_worker_that_works_alone_connects_to_no_store():
    unreachable = StoreAddress("127.0.0.1", 1)
    worker = DeviceWorker(load_config("smoke", [], {}), trains=False, meeting=unreachable)
    with pytest.raises(GroupBrokenError, match="in no group"):
        worker.in_group(1, "ready")


def test_a_notice_at_one_member_stops_all_at_the_same_step(tmp_path: Path):
    config = configuration(2)
    with SimulatedNotices(WORKER_IN_URL) as notices:
        config = config.changed(runtime={"notices": f"gcp@{notices.url}"})
        with process_fleet(config, 1, str(new_life(tmp_path)), watches=True) as fleet:
            members = "reserved-0", "spot-0"
            group = WorkerGroup(1, 0, members)
            for joined in form(fleet, group, members):
                joined.result(timeout=120.0)
            notices.warn("spot-0")
            spot = fleet.actors["spot-0"]
            wait_until("it is warned", lambda: spot.call(Worker.notice).result() is not None)
            begun = [
                fleet.actors[name].call(Worker.in_group, 1, "begin_samples", WEIGHTS, 0, REQUESTS[:4], 6)
                for name in members
            ]
            led, followed = (call.result(timeout=120.0) for call in begun)
            assert led.notice is None and followed.notice is not None
            assert not led.samples and {state.step for state in led.states} <= {1}
            # Both have given the lease up: what was queued behind it does nothing.
            after = [fleet.actors[name].call(Worker.in_group, 1, "advance_samples", 0, 6) for name in members]
            assert [call.result(timeout=120.0).states for call in after] == [(), ()]
