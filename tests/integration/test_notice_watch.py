"""The notice of this machine, watched in the background against a played provider."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from gpu_runtime.scheduling.requests import RequestKind, WeightsVersion
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.spot.notices.registry import NOTICES
from gpu_runtime.spot.notices.simulated_service import SimulatedService
from gpu_runtime.spot.notices.watch import NoticePlugin, NoticeWatch
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.errors import ConfigurationError, NoticeError
from tests.simulated_providers import GCP_FLAG, QUIET
from tests.tiny_run import request


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def watching(provider: str, url: str = "") -> Iterator[NoticeWatch]:
    watch = NoticeWatch(NOTICES.find(provider), url)
    try:
        yield watch
    finally:
        watch.close()


class Scripted:
    """A watcher whose polls do what the test says, and are counted."""

    provider = "test"

    def __init__(self, *polls: Notice | Exception | None) -> None:
        self.left = list(polls)
        self.polls = 0

    def poll(self, now: float) -> Notice | None:
        self.polls += 1
        found = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        pass


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets GCP be asked many times a second."""
    quick = replace(NOTICES.find("gcp"), poll_interval_s=0.005, max_backoff_s=0.02)
    monkeypatch.setattr(NOTICES, "find", lambda name: quick)


def test_a_notice_is_known_until_it_is_withdrawn(service: SimulatedService, soon):
    service.answers.update(QUIET["gcp"])
    with watching("gcp", service.url) as watch:
        wait_until(lambda: bool(service.asked))
        assert watch.notice is None
        service.answers[GCP_FLAG] = "TRUE"
        wait_until(lambda: watch.notice is not None)
        first, polls = watch.notice, len(service.asked)
        wait_until(lambda: len(service.asked) > polls + 2)
        assert watch.notice is first, "one notice, however often it is seen"
        service.answers[GCP_FLAG] = "FALSE"
        wait_until(lambda: watch.notice is None)


def test_failed_polls_are_logged_once_and_withdraw_nothing(service: SimulatedService, soon, caplog):
    service.answers[GCP_FLAG] = "TRUE"
    with caplog.at_level(logging.DEBUG), watching("gcp", service.url) as watch:
        wait_until(lambda: watch.notice is not None)
        service.answers[GCP_FLAG] = 500
        wait_until(lambda: "status 500" in caplog.text)
        service.answers[GCP_FLAG] = "what?"
        wait_until(lambda: "what?" in caplog.text)
        service.answers[GCP_FLAG] = "TRUE"
        wait_until(lambda: "can be read again" in caplog.text)
        assert watch.notice is not None
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and "status 500" in warnings[0].getMessage()


def test_each_failed_poll_waits_twice_as_long_up_to_the_limit(monkeypatch: pytest.MonkeyPatch):
    waited: list[float] = []
    watcher = Scripted(*[NoticeError("no answer")] * 6, None)

    waits = threading.Event.wait

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        if threading.current_thread().name != "notices-test" or timeout is None:
            return waits(event, timeout)
        waited.append(timeout)
        if len(waited) == 8:
            event.set()
        return event.is_set()

    monkeypatch.setattr(threading.Event, "wait", wait)
    monkeypatch.setattr(NOTICES, "find", lambda name: NoticePlugin(lambda: watcher, 1.0, 10.0))
    with watching("test"):
        wait_until(lambda: len(waited) == 8)
    assert waited == [2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 1.0, 1.0]


def test_the_watch_knows_why_it_sees_nothing_until_a_poll_succeeds(monkeypatch: pytest.MonkeyPatch):
    watcher = Scripted(NoticeError("no answer"))
    monkeypatch.setattr(NOTICES, "find", lambda name: NoticePlugin(lambda: watcher, 0.005, 0.01))
    with watching("test") as watch:
        wait_until(lambda: watch.failure == "no answer")
        watcher.left[0] = ConnectionError()  # without a text
        wait_until(lambda: watch.failure == "ConnectionError")
        watcher.left[0] = None
        wait_until(lambda: not watch.failure)


def test_a_bug_of_a_watcher_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch, caplog):
    watcher = Scripted(KeyError("a bug"), Notice("test", None, 0.0, "one"))
    monkeypatch.setattr(NOTICES, "find", lambda name: NoticePlugin(lambda: watcher, 0.005, 0.02))
    with watching("test") as watch:
        wait_until(lambda: watch.notice is not None)
    assert "a bug" in caplog.text


def test_the_watch_ends_at_once_between_polls(monkeypatch: pytest.MonkeyPatch):
    watcher = Scripted(None)
    monkeypatch.setattr(NOTICES, "find", lambda name: NoticePlugin(lambda: watcher, 600.0, 600.0))
    with watching("test"):
        wait_until(lambda: watcher.polls == 1)
    assert not any(thread.name == "notices-test" for thread in threading.enumerate())


def test_sigterm_is_seen():
    original = signal.getsignal(signal.SIGTERM)
    with watching("kubernetes") as watch:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: watch.notice is not None)
    assert signal.getsignal(signal.SIGTERM) is original


def test_what_cannot_be_watched_is_refused():
    with pytest.raises(ConfigurationError, match="'oracle': unknown name"):
        NoticeWatch(NOTICES.find("oracle"))
    with pytest.raises(ConfigurationError, match=r"not of the form http://HOST:PORT"):
        NoticeWatch(NOTICES.find("gcp"), "ftp://somewhere")


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
