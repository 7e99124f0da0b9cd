"""SIGTERM as a notice."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from gpu_runtime.spot.notices.kubernetes import KubernetesNotices
from gpu_runtime.spot.notices.polling_thread import NoticeThread
from gpu_runtime.spot.notices.registry import watcher_for
from storage.errors import ConfigurationError
from tests.simulated_providers import NOON

PATIENCE_S = 20.0


class TestKubernetes:
    @pytest.fixture
    def before(self) -> Iterator[list[int]]:
        """Counts the signals that reach the handler of before."""
        reached: list[int] = []
        original = signal.signal(signal.SIGTERM, lambda number, frame: reached.append(number))
        yield reached
        signal.signal(signal.SIGTERM, original)

    def test_sigterm_is_a_notice_until_the_watcher_is_closed(self, before):
        watcher = watcher_for("kubernetes", grace_s=25.0, clock=iter([NOON, NOON + 9]).__next__)
        assert watcher.poll(NOON) is None
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        notice = watcher.poll(NOON + 3)
        assert notice is not None
        assert (notice.kind, notice.received_at, notice.deadline) == ("terminate", NOON, NOON + 25)
        assert before == []
        watcher.close()
        watcher.close()
        os.kill(os.getpid(), signal.SIGTERM)
        assert before == [signal.SIGTERM]

    def test_a_handler_that_came_later_is_left_alone(self, before):
        watcher = KubernetesNotices()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        watcher.close()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN

    def test_only_the_main_thread_may_watch(self):
        refused: list[ConfigurationError] = []

        def elsewhere() -> None:
            try:
                KubernetesNotices()
            except ConfigurationError as error:
                refused.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert "main thread" in str(refused[0])

    def test_the_background_thread_tells_of_it(self, before):
        came = threading.Event()
        watcher = KubernetesNotices()
        with NoticeThread(watcher, lambda notice: came.set(), poll_interval_s=0.005):
            os.kill(os.getpid(), signal.SIGTERM)
            assert came.wait(PATIENCE_S)
        watcher.close()
