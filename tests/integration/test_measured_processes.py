"""Groups whose degree measured times choose, on real workers in processes without Ray."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.sample_phase import SamplePhase
from gpu_runtime.groups.sharing import MeasuredFleet
from gpu_runtime.scheduling.degree_choice import StepTimeTable
from gpu_runtime.scheduling.group_layout import GroupRegistry
from gpu_runtime.scheduling.history import check_history
from gpu_runtime.worker.history import HistoryLog, names_of, new_life, read_history
from storage.config.loading import load_config
from tests.integration.test_shared_processes import REQUESTS, SETTINGS, alone
from tests.shared_samples import NEAR, degrees_of
from tests.worker_processes import WEIGHTS, process_fleet

pytestmark = pytest.mark.xdist_group("sharing")


def test_real_times_are_measured_and_whatever_they_choose_the_samples_are_right(tmp_path: Path):
    config = load_config("smoke", [*SETTINGS, "runtime.spot_workers=3", "sequence_parallel.rollout=auto"], {})
    expected, step_times, book = alone(config), StepTimeTable(), GroupRegistry()
    life = new_life(tmp_path)
    loop = Dispatcher(
        config.runtime, config.sampling.batch_size, history=HistoryLog(tmp_path / "0001", "driver")
    )
    with process_fleet(config, 3, str(life)) as fleet:
        for _ in range(2):
            groups = MeasuredFleet(
                fleet, WEIGHTS, step_times, (1, 2, 4), fleet.store, book, lambda device: "",
                config.runtime.lease_s,
            )  # fmt: skip
            phase = SamplePhase(REQUESTS, config.sampling)
            try:
                loop.run(groups, phase)
            finally:
                groups.close()
            assert loop.counters.redone_steps == loop.counters.duplicates == 0
            assert 1 in step_times.known and all(step_s > 0 for step_s in step_times.known.values())
            formed = {len(record.members) for record in groups.records}
            assert formed and formed <= {1, 2, 4}
            degrees = degrees_of(read_history(tmp_path))
            names = names_of(one.sample.request for one in phase.delivered)
            for name, one, sample in zip(names, phase.delivered, expected, strict=True):
                distance = float(np.abs(one.sample.latents_SC - sample.latents_SC).max())
                assert distance <= (0.0 if set(degrees[name]) == {1} else NEAR), degrees[name]
        assert fleet.lost == []
    assert check_history(read_history(tmp_path)).broken() == []
