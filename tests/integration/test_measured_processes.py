"""Groups whose degree measured times choose, on real workers in processes without Ray."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.sample_phase import Delivered, SamplePhase
from gpu_runtime.groups.degree_choice import StepTimeTable
from gpu_runtime.groups.layout import GroupRegistry
from gpu_runtime.groups.sharing import MeasuredFleet
from gpu_runtime.scheduling.history import check_history
from gpu_runtime.scheduling.requests import SampleRequest
from gpu_runtime.worker.history import HistoryLog, names_of, new_life, read_history
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from tests.integration.test_shared_processes import REQUESTS, SETTINGS, alone
from tests.shared_samples import NEAR, degrees_of
from tests.worker_processes import WEIGHTS, ProcessFleet, process_fleet

pytestmark = pytest.mark.xdist_group("sharing")


class SetPace(StepTimeTable):
    """Times of a test's choosing, whatever is measured."""

    def __init__(self, step_s: dict[int, float], regroup_s: float) -> None:
        super().__init__()
        for degree, seconds in step_s.items():
            for _ in range(2):
                super().note(degree, seconds, first=False)
        super().note_regroup(regroup_s)

    def note(self, degree: int, step_s: float, first: bool) -> None:
        """What is measured changes nothing."""

    def note_regroup(self, seconds: float, members: Collection[str] = ()) -> None:
        """What is measured changes nothing."""


class Run:
    """Phases of one run on one fleet."""

    def __init__(self, fleet: ProcessFleet, config: RunConfig, history: Path) -> None:
        self.fleet, self.config, self.history = fleet, config, history
        self.book = GroupRegistry()
        self.loop = Dispatcher(
            config.runtime, config.sampling.batch_size, history=HistoryLog(history / "0001", "driver")
        )

    def generate(
        self, requests: Sequence[SampleRequest], step_times: StepTimeTable
    ) -> tuple[list[Delivered], list[int]]:
        """One phase, and the degrees of its groups that stood to the end or were changed for others."""
        lease_s = self.config.runtime.lease_s
        groups = MeasuredFleet(
            self.fleet,
            WEIGHTS,
            step_times,
            (1, 2, 4),
            self.fleet.store,
            self.book,
            lambda device: "",
            lease_s,
        )
        phase = SamplePhase(requests, self.config.sampling)
        try:
            self.loop.run(groups, phase)
        finally:
            groups.close()
        assert self.loop.counters.redone_steps == self.loop.counters.duplicates == 0
        return phase.delivered, [len(record.members) for record in groups.records]

    def degrees(self, delivered: Sequence[Delivered]) -> list[tuple[int, ...]]:
        """By how many devices each denoising step of each sample was shared."""
        found = degrees_of(read_history(self.history))
        return [found[name] for name in names_of(one.sample.request for one in delivered)]


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return load_config("smoke", [*SETTINGS, "runtime.spot_workers=3", "sequence_parallel.rollout=auto"], {})


@pytest.fixture(scope="module")
def expected(config: RunConfig) -> list[GeneratedSample]:
    """What one worker makes of them."""
    return alone(config)


@pytest.fixture
def run(config: RunConfig, tmp_path: Path) -> Iterator[Run]:
    life = new_life(tmp_path)
    with process_fleet(config, 3, str(life)) as fleet:
        yield Run(fleet, config, tmp_path)
        assert fleet.lost == []
    assert check_history(read_history(tmp_path)).broken() == []


def apart(delivered: Sequence[Delivered], samples: Sequence[GeneratedSample]) -> list[float]:
    pairs = zip(delivered, samples, strict=True)
    return [float(np.abs(a.sample.latents_SC - b.latents_SC).max()) for a, b in pairs]


def test_real_times_are_measured_and_whatever_they_choose_the_samples_are_right(
    run: Run, expected: list[GeneratedSample]
):
    step_times = StepTimeTable()
    for _ in range(2):
        delivered, groups = run.generate(REQUESTS, step_times)
        assert 1 in step_times.known and all(step_s > 0 for step_s in step_times.known.values())
        assert groups and set(groups) <= {1, 2, 4}
        for distance, degrees in zip(apart(delivered, expected), run.degrees(delivered), strict=True):
            assert distance <= (0.0 if set(degrees) == {1} else NEAR), degrees


def test_few_batches_are_shared_by_all_and_the_last_of_many_are_joined_by_the_idle(
    run: Run, expected: list[GeneratedSample]
):
    costly = SetPace({1: 3.0, 2: 1.8, 4: 1.4}, 0.01)
    delivered, groups = run.generate(REQUESTS[:4], costly)
    assert groups == [4]
    assert set(run.degrees(delivered)) == {(4,) * 6}
    assert max(apart(delivered, expected[:4])) <= NEAR

    superlinear = SetPace({1: 3.0, 2: 1.0, 4: 0.3}, 0.01)
    delivered, groups = run.generate(REQUESTS, superlinear)
    assert groups == [4]

    # Three batches for four devices: two of them share one, and who is done first joins the others.
    delivered, groups = run.generate(REQUESTS[:12], costly)
    assert sorted(groups)[-1] >= 2 and groups.count(1) >= 2
    assert max(max(degrees) for degrees in run.degrees(delivered)) >= 2
    assert max(apart(delivered, expected[:12])) <= NEAR
