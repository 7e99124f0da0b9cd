"""The background thread that tells of notices, against a local server that plays the provider."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable

import pytest

from gpu_runtime.spot.notices.notice import Notice, NoticeWatcher
from gpu_runtime.spot.notices.polling_thread import NoticeThread
from storage.errors import ConfigurationError, NoticeError
from tests.simulated_providers import AWS_ACTION, AWS_REBALANCE, GCP_FLAG, NOON, SPOT_ACTION

PATIENCE_S = 20.0


class Listener:
    """Keeps what it is told, and waits for more."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self._more = threading.Condition()

    def came(self, notice: Notice) -> None:
        self._note("came", notice)

    def withdrawn(self, notice: Notice) -> None:
        self._note("withdrawn", notice)

    def _note(self, change: str, notice: Notice) -> None:
        with self._more:
            self.told.append((change, notice.kind))
            self._more.notify_all()

    def wait_for(self, count: int) -> list[tuple[str, str]]:
        with self._more:
            assert self._more.wait_for(lambda: len(self.told) >= count, PATIENCE_S), self.told
            return list(self.told)


def wait_until(condition: Callable[[], bool]) -> None:
    passed = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        if condition():
            return
        passed.wait(0.005)
    pytest.fail("it did not happen")


def background(watcher: NoticeWatcher, listener: Listener, **settings: float) -> NoticeThread:
    timing = {"poll_interval_s": 0.005, "max_backoff_s": 0.02, **settings}
    return NoticeThread(watcher, listener.came, listener.withdrawn, clock=lambda: NOON, **timing)  # type: ignore[arg-type]


class TestNoticeThread:
    def test_one_call_for_a_notice_however_often_it_is_seen(self, watch, service):
        listener = Listener()
        watcher = watch("gcp")
        service.answers[GCP_FLAG] = "TRUE"
        with background(watcher, listener) as thread:
            wait_until(lambda: thread.polls >= 10)
        assert listener.told == [("came", "terminate")]
        assert thread.errors == 0

    def test_withdrawn_and_back_again(self, watch, service):
        listener = Listener()
        with background(watch("aws"), listener):
            service.answers[AWS_ACTION] = SPOT_ACTION
            listener.wait_for(1)
            del service.answers[AWS_ACTION]
            listener.wait_for(2)
            service.answers[AWS_ACTION] = SPOT_ACTION
            told = listener.wait_for(3)
        assert [change for change, _ in told] == ["came", "withdrawn", "came"]

    def test_advice_then_notice_then_all_clear(self, watch, service):
        listener = Listener()
        with background(watch("aws"), listener):
            service.answers[AWS_REBALANCE] = json.dumps({"noticeTime": "2027-01-15T07:50:00Z"})
            listener.wait_for(1)
            service.answers[AWS_ACTION] = SPOT_ACTION
            assert listener.wait_for(2) == [("came", "rebalance"), ("came", "terminate")]
            del service.answers[AWS_ACTION]
            assert listener.wait_for(3)[2:] == [("withdrawn", "terminate")]
            del service.answers[AWS_REBALANCE]
            assert listener.wait_for(4)[3:] == [("withdrawn", "rebalance")]

    def test_failed_polls_are_counted_and_withdraw_nothing(self, watch, service, caplog):
        listener = Listener()
        with caplog.at_level(logging.DEBUG), background(watch("gcp"), listener) as thread:
            service.answers[GCP_FLAG] = "TRUE"
            listener.wait_for(1)
            service.answers[GCP_FLAG] = 500
            wait_until(lambda: thread.errors >= 3)
            service.answers[GCP_FLAG] = "what?"
            wait_until(lambda: "what?" in (thread.last_error or ""))
            service.answers[GCP_FLAG] = "TRUE"
            polls = thread.polls
            wait_until(lambda: thread.polls >= polls + 3)
        assert listener.told == [("came", "terminate")]
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 1 and "status 500" in warnings[0].getMessage()

    def test_each_failed_poll_waits_twice_as_long_up_to_the_limit(self, monkeypatch):
        waited: list[float] = []

        class Failing:
            provider = "test"
            failures = 6

            def poll(self, now: float) -> Notice | None:
                self.failures -= 1
                if self.failures >= 0:
                    raise NoticeError("no answer")
                return None

            def close(self) -> None: ...

        thread = background(Failing(), Listener(), poll_interval_s=1.0, max_backoff_s=10.0)

        def wait(wait_s: float) -> None:
            waited.append(wait_s)
            if len(waited) == 8:
                thread._stopping.set()

        monkeypatch.setattr(thread._stopping, "wait", wait)
        thread._run()
        assert waited == [2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 1.0, 1.0]

    def test_whatever_a_watcher_or_a_listener_raises_ends_nothing(self, caplog):
        notices = [Notice("test", "terminate", None, NOON, "one"), None]

        class Odd:
            provider = "test"
            polls = 0

            def poll(self, now: float) -> Notice | None:
                self.polls += 1
                if self.polls == 1:
                    raise KeyError("a bug")
                return notices[self.polls % 2]

            def close(self) -> None: ...

        calls: list[Notice] = []

        def listen(notice: Notice) -> None:
            calls.append(notice)
            raise ValueError("the listener's own bug")

        with NoticeThread(Odd(), listen, poll_interval_s=0.005) as thread:
            wait_until(lambda: len(calls) >= 2)
        assert thread.errors >= 3
        assert "the listener's own bug" in str(thread.last_error)

    def test_stops_during_a_long_wait_and_calls_no_listener_any_more(self, watch, service):
        listener = Listener()
        thread = background(watch("gcp"), listener, poll_interval_s=600.0, max_backoff_s=600.0).start()
        wait_until(lambda: len(service.asked) == 1)
        service.answers[GCP_FLAG] = "TRUE"
        assert thread.stop(PATIENCE_S)
        assert listener.told == []
        assert thread.stop(), "stopping twice does nothing"

    def test_a_notice_that_arrives_after_the_stop_is_not_told(self, watch, service):
        listener = Listener()
        answered = threading.Event()

        def late(headers: dict[str, str]) -> str:
            answered.wait(PATIENCE_S)
            return "TRUE"

        watcher = watch("gcp")
        service.answers[GCP_FLAG] = late
        thread = background(watcher, listener).start()
        wait_until(lambda: len(service.asked) == 1)
        assert not thread.stop(timeout_s=0.01), "the request is still under way"
        answered.set()
        assert thread.stop(PATIENCE_S)
        assert listener.told == []

    def test_may_be_stopped_by_its_listener_and_before_its_start(self, watch, service):
        done = threading.Event()
        watcher = watch("gcp")
        service.answers[GCP_FLAG] = "TRUE"

        def stop(notice: Notice) -> None:
            assert not thread.stop()
            done.set()

        thread = NoticeThread(watcher, stop, poll_interval_s=0.005)
        thread.start()
        assert done.wait(PATIENCE_S)
        assert thread.stop(PATIENCE_S)
        assert thread.polls == 1
        assert NoticeThread(watcher, stop).stop()


@pytest.mark.parametrize(
    "timing", [{"poll_interval_s": 0.0}, {"poll_interval_s": float("inf")}, {"max_backoff_s": 0.5}]
)
def test_impossible_timing_is_refused(timing, watch):
    with pytest.raises(ConfigurationError, match=" s; give "):
        NoticeThread(watch("gcp"), print, **timing)
