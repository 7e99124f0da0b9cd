"""Workers of one process: their calls are done at once, and their time is noted by the kind of work."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.exploration.in_process_cluster import OTHER, SCORE, SCORE_HELD_OUT, TRAIN, InProcessCluster
from gpu_runtime.scheduling.requests import RequestKind
from storage.errors import TrainingError

SPENT_S = 0.02


def chunk(finished: int) -> SimpleNamespace:
    return SimpleNamespace(samples=(None,) * finished)


class Work:
    """A worker whose calls take a while of this thread's processor time."""

    def begin_samples(self, version: object, lease: int, work: list[Any], steps: int) -> SimpleNamespace:
        spend()
        return chunk(0)

    def advance_samples(self, lease: int, steps: int) -> SimpleNamespace:
        spend()
        return chunk(4)

    def train(self, samples: list[Any]) -> None:
        spend()

    def score(self, images: list[Any], prompts: list[Any], held_out: bool) -> None:
        spend()

    def weights(self) -> None:
        spend()

    def blobs(self) -> None:
        raise TrainingError("none")


def spend() -> None:
    began_s = time.thread_time()
    while time.thread_time() - began_s < SPENT_S:
        pass


def request(kind: RequestKind) -> SimpleNamespace:
    return SimpleNamespace(kind=kind)


@pytest.fixture
def cluster() -> InProcessCluster:
    return InProcessCluster()


def test_both_chunks_of_a_lease_count_as_what_it_generates(cluster):
    device = cluster.start("spot-0", Work, gpu=True)
    state = SimpleNamespace(request=request(RequestKind.EXPLORE))  # a sample that goes on elsewhere
    device.call(Work.begin_samples, None, 1, [state], 2)
    device.call(Work.begin_samples, None, 2, [request(RequestKind.ROLLOUT)], 2)
    device.call(Work.advance_samples, 1, 2)
    assert dict(cluster.times.samples) == {"explore": 4, "rollout": 0}
    assert cluster.times.seconds["explore"] >= 2 * SPENT_S
    assert cluster.times.seconds["rollout"] >= SPENT_S


def test_scorers_are_no_devices_and_held_out_images_count_apart(cluster):
    scorer, device = (cluster.start(name, Work, gpu=False) for name in ("scorer-0", "reserved-0"))
    scorer.call(Work.score, [1, 2, 3], [1, 2, 3], False)
    scorer.call(Work.score, [1], [1], True)
    device.call(Work.train, [1, 2])
    device.call(Work.weights)
    assert dict(cluster.times.samples) == {SCORE: 3, SCORE_HELD_OUT: 1, TRAIN: 2, OTHER: 0}
    assert cluster.times.devices_s == pytest.approx(
        cluster.times.seconds[TRAIN] + cluster.times.seconds[OTHER]
    )


def test_an_error_is_the_caller_s_and_costs_nothing(cluster):
    call = cluster.start("reserved-0", Work, gpu=True).call(Work.blobs)
    with pytest.raises(TrainingError, match="none"):
        call.result()
    assert not cluster.times.seconds
