"""Actors of a local Ray cluster: what goes in, comes back, is raised, or is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gpu_runtime.cluster.ray.ray_cluster import RayCluster, ray
from gpu_runtime.cluster.ray.ray_internals import Node, kept_signal_handlers, ray_utils
from storage.errors import ConfigurationError, RuntimeFailure, WorkerLostError
from tests.tiny_run import tiny_config

pytestmark = pytest.mark.slow


class Parrot:
    def gpus(self) -> list[Any]:
        """Those that Ray gave it."""
        return ray.get_gpu_ids()

    def say(self, *what: Any) -> Any:
        return what

    def brood(self) -> None:
        time.sleep(3600)

    def refuse(self, why: str) -> None:
        raise RuntimeFailure(why)

    def unreadable(self) -> Unreadable:
        return Unreadable()


class Unreadable:
    """Goes into bytes and not back."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


CONFIG = tiny_config(
    model={"device": "auto"}, reward={"scorer": "clip-score"},
    runtime={"reserved_workers": 1, "spot_workers": 1, "scorer_workers": 2, "scorer_gpu": 0.5},
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster that is told of three GPUs."""
    start = ray.init
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "init", lambda **options: start(num_gpus=3, **options))
        patch.setattr(torch.cuda, "is_available", lambda: True)
        cluster = RayCluster(CONFIG)
    yield cluster
    cluster.shutdown()


def test_the_object_store_of_a_machine_with_gpus_is_of_ray_s_size(cluster: RayCluster):
    assert ray.cluster_resources()["object_store_memory"] > 1024**3


def test_references_arrive_as_their_values_beside_plain_arguments(cluster: RayCluster):
    small, large = np.arange(3), np.zeros(2_000_000, np.uint8)
    references = [cluster.share(small), cluster.share(large)]
    actor = cluster.start("parrot", Parrot, gpu=False)
    said = actor.call(Parrot.say, references[1], "key", references[0], references[1]).result(timeout=240)
    assert said[1] == "key" and np.array_equal(said[2], small)
    assert np.array_equal(said[0], large) and np.array_equal(said[3], large)
    actor.kill()  # the workers below need its place


def test_errors_arrive_as_they_were_raised_or_as_a_loss(cluster: RayCluster):
    actor = cluster.start("parrot", Parrot, gpu=False)
    with pytest.raises(RuntimeFailure, match="no seed today"):
        actor.call(Parrot.refuse, "no seed today").result(timeout=240)
    with pytest.raises(ValueError, match="no number"):
        actor.call(Parrot.unreadable).result(timeout=240)
    under_way = actor.call(Parrot.brood)
    actor.kill()
    with pytest.raises(WorkerLostError, match="parrot"):
        under_way.result(timeout=240)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ray_takes_no_signal_over(number: signal.Signals):
    """Its own handler for SIGTERM would wait half a minute for a cluster to empty that is still starting."""
    ours, rays = signal.getsignal(number), ray_utils.set_sigterm_handler
    with kept_signal_handlers():
        ray_utils.set_sigterm_handler(signal.default_int_handler)
        assert signal.getsignal(number) == ours
        signal.signal(number, signal.default_int_handler)
    assert signal.getsignal(number) == ours
    assert ray_utils.set_sigterm_handler is rays


def test_scorers_get_a_gpu_of_their_own_beside_whole_ones_for_the_workers(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as shared:
        # One that is refused looks at the same cluster, and leaves it to us to end.
        shared.setattr(ray, "init", lambda **options: None)
        ended: list[RayCluster] = []
        shared.setattr(RayCluster, "shutdown", lambda cluster: ended.append(cluster))
        refuse("takes 3 GPUs, but the cluster has 3", scorer_workers=6)
        refuse("standby_workers = 1, but the workers have GPUs", standby_workers=1)
        refuse("but 3 workers would share 2 GPUs", reserved_workers=2, trainer_workers=2)
    assert len(ended) == 3, "each ends what it has started"
    workers = [cluster.start(f"worker-{n}", Parrot, gpu=True) for n in range(2)]
    scorers = [cluster.start(f"scorer-{n}", Parrot, gpu=False, gpu_share=0.5) for n in range(2)]
    of_workers, of_scorers = (
        [actor.call(Parrot.gpus).result(timeout=240) for actor in actors] for actors in (workers, scorers)
    )
    assert of_scorers[0] == of_scorers[1]
    assert len({gpu for seen in (*of_workers, of_scorers[0]) for gpu in seen}) == 3


def refuse(why: str, **settings: Any) -> None:
    other = CONFIG.changed(runtime=settings)
    with pytest.raises(ConfigurationError, match=why):
        RayCluster(other)


def test_a_signal_while_ray_ends_its_processes_is_this_process_s(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
):
    """By then Ray's core has made SIGTERM fatal: a second one would end a run that is being cancelled."""
    ends_processes, got = Node.kill_all_processes, []

    def end_processes(node: Node, *arguments: Any, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        ends_processes(node, *arguments, **options)

    monkeypatch.setattr(Node, "kill_all_processes", end_processes)
    ours = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    try:
        cluster.shutdown()  # this is its last test
    finally:
        signal.signal(signal.SIGTERM, ours)
    assert got == [signal.SIGTERM]
