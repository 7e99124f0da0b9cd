"""What a worker's process knows of its own end, from a played metadata service."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpu_runtime.scheduling.requests import RequestKind, WeightsVersion
from gpu_runtime.spot.notices import watch as module
from gpu_runtime.spot.notices.notice import Notice, NoticeKind
from gpu_runtime.spot.notices.registry import NOTICES
from gpu_runtime.spot.notices.simulated_service import SimulatedService
from gpu_runtime.spot.notices.watch import NoticeWatch
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.errors import ConfigurationError
from tests.simulated_providers import GCP_FLAG, QUIET
from tests.tiny_run import request


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Scripted:
    """A watcher that sees what the test puts there, and counts its polls."""

    provider = "gcp"

    def __init__(self) -> None:
        self.sees: Notice | None = None
        self.polls = 0

    def poll(self, now: float) -> Notice | None:
        self.polls += 1
        return self.sees

    def close(self) -> None:
        pass


def test_a_notice_is_known_until_it_is_withdrawn(service: SimulatedService):
    service.answers.update(QUIET["gcp"])
    watch = NoticeWatch("gcp", service.url)
    try:
        wait_until(lambda: bool(service.asked))
        assert watch.notice is None
        service.answers[GCP_FLAG] = "TRUE"
        wait_until(lambda: watch.notice is not None)
        assert watch.notice is not None and watch.notice.kind == "terminate"
        service.answers[GCP_FLAG] = "FALSE"
        wait_until(lambda: watch.notice is None)
    finally:
        watch.close()


def test_advice_is_no_notice(monkeypatch: pytest.MonkeyPatch):
    watcher = Scripted()
    quick = replace(NOTICES.find("gcp"), poll_interval_s=0.001)
    monkeypatch.setattr(NOTICES, "find", lambda name: quick)
    monkeypatch.setattr(module, "watcher_for", lambda name: watcher)
    watch = NoticeWatch("gcp")

    def see(kind: NoticeKind) -> Notice | None:
        """What the watch says once a poll that saw this has been told: the one after has begun."""
        watcher.sees, seen = Notice("gcp", kind, None, 0.0, kind), watcher.polls
        wait_until(lambda: watcher.polls >= seen + 3)
        return watch.notice

    try:
        assert see("rebalance") is None
        assert see("terminate") is not None
        assert see("rebalance") is None
    finally:
        watch.close()


def test_what_cannot_be_watched_is_refused():
    with pytest.raises(ConfigurationError, match="'oracle': there is none of that name"):
        NoticeWatch("oracle")
    with pytest.raises(ConfigurationError, match=r"not of the form http://HOST:PORT"):
        NoticeWatch("gcp", "ftp://somewhere")


def test_a_spot_worker_under_notice_gives_its_samples_back(service: SimulatedService):
    service.answers.update(QUIET["gcp"])
    settings = ["sampling.batch_size=4", f"runtime.notices=gcp@{service.url}"]
    config = load_config("smoke", settings, {})
    assert DeviceWorker(config, trains=False).notice() is None, "a reserved one does not watch"
    assert service.asked == []
    worker = DeviceWorker(config, trains=False, watches=True)
    worker.use_training_weights(WeightsVersion(0))
    wanted = [request(0, seed) for seed in range(2)]
    first = worker.begin_samples(WeightsVersion(0), 0, wanted, 1)
    assert [state.step for state in first.states] == [1, 1] and first.notice is None
    service.answers[GCP_FLAG] = "TRUE"
    wait_until(lambda: worker.notice() is not None)
    chunk = worker.advance_samples(0, 2)
    assert chunk.notice is not None and chunk.states == () and chunk.samples == ()
    drafts = [replace(one, kind=RequestKind.EXPLORE) for one in wanted]
    assert worker.begin_samples(WeightsVersion(0), 1, drafts, 1).notice is not None
