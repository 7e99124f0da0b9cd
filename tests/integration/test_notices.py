"""Preemption notices of every provider, against a local server that plays it."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gpu_runtime.spot.notices import aws, gcp, kubernetes
from gpu_runtime.spot.notices.kubernetes import KubernetesNotices
from gpu_runtime.spot.notices.notice import Notice, NoticeWatcher
from gpu_runtime.spot.notices.registry import NOTICES
from gpu_runtime.spot.notices.simulated_service import SimulatedService
from gpu_runtime.spot.notices.watch import LARGEST_BODY_BYTES, NoticePlugin
from storage.errors import ConfigurationError, NoticeError
from tests.simulated_providers import (
    ALIBABA_TIME,
    AWS_ACTION,
    AWS_TOKEN,
    AZURE_EVENTS,
    AZURE_NAME,
    FLAG_OF,
    GCP_FLAG,
    GRACE_S,
    HTTP_PROVIDERS,
    NOON,
    QUIET,
    SPOT_ACTION,
    TAKEN,
    TWO_MINUTES_LATER,
    azure_events,
    preempt,
)


def taken(watcher: NoticeWatcher, now: float = NOON) -> Notice:
    notice = watcher.poll(now)
    assert notice is not None
    return notice


@pytest.mark.parametrize("provider", HTTP_PROVIDERS)
class TestEveryHttpProvider:
    def test_nothing_then_the_same_notice_at_every_poll_until_it_is_withdrawn(
        self, provider, watch, service, monkeypatch
    ):
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # proxies are not asked
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
        monkeypatch.delenv("NO_PROXY", raising=False)
        watcher = watch(provider)
        assert watcher.poll(NOON) is None
        service.answers.update(TAKEN[provider])
        first, later, late = taken(watcher), taken(watcher, NOON + 5), taken(watcher, NOON + 1000)
        assert (first.provider, first.received_at) == (provider, NOON)
        assert first.deadline == later.deadline == NOON + GRACE_S[provider]
        assert first == later == late and later.received_at == NOON + 5
        assert late.deadline == NOON + 1000, "one that has passed is now"
        del service.answers[FLAG_OF[provider]]
        service.answers.update(QUIET[provider])
        assert watcher.poll(NOON) is None

    @pytest.mark.parametrize(
        "answer",
        [
            500,
            (503, "busy"),
            (302, ""),
            (200, "<html>sign in</html>"),
            (200, "[]"),
            (200, b"\xff"),
            (200, "[" * 9999),
        ],
        ids=["500", "503", "redirect", "html", "a list", "not UTF-8", "too deep"],
    )
    def test_an_answer_that_says_nothing_is_an_error(self, provider, watch, service, answer):
        watcher = watch(provider)
        service.answers[FLAG_OF[provider]] = answer
        with pytest.raises(NoticeError, match="asking again later"):
            watcher.poll(NOON)
        service.answers.update(TAKEN[provider])
        taken(watcher)

    def test_no_answer_in_time_and_a_body_without_end(self, provider, watch, service, monkeypatch):
        monkeypatch.setattr("gpu_runtime.spot.notices.watch.TIMEOUT_S", 0.2)
        watcher = watch(provider)
        service.answers[FLAG_OF[provider]] = None
        with pytest.raises(NoticeError, match=r"0\.2 s"):
            watcher.poll(NOON)
        monkeypatch.setattr("gpu_runtime.spot.notices.watch.TIMEOUT_S", 5.0)
        watcher = watch(provider)
        service.answers[FLAG_OF[provider]] = "x" * (LARGEST_BODY_BYTES + 1)
        with pytest.raises(NoticeError, match="more than 262144 bytes"):
            watcher.poll(NOON)

    def test_no_service_there(self, provider):
        with SimulatedService() as gone:
            url = gone.url
        watcher = NOTICES.find(provider).watcher(base_url=url)
        with pytest.raises(NoticeError, match="cannot be reached"):
            watcher.poll(NOON)
        watcher.close()


class TestAws:
    def test_the_token_is_asked_for_once_sent_along_and_renewed_when_it_expired(self, watch, service):
        watcher = watch("aws")
        watcher.poll(NOON)
        watcher.poll(NOON)
        assert service.paths() == [aws.TOKEN_PATH, aws.ACTION_PATH, aws.ACTION_PATH], "nor is advice"
        assert service.asked[0][2]["x-aws-ec2-metadata-token-ttl-seconds"] == "21600"
        assert {headers.get("x-aws-ec2-metadata-token") for _, _, headers in service.asked[1:]} == {"token-1"}
        service.answers[AWS_TOKEN] = "token-2"
        service.answers[AWS_ACTION] = lambda headers: (
            SPOT_ACTION if headers["x-aws-ec2-metadata-token"] == "token-2" else 401
        )
        taken(watcher)
        assert service.paths().count(aws.TOKEN_PATH) == 2

    def test_a_service_that_refuses_every_token_is_an_error(self, watch, service):
        watcher = watch("aws")
        service.answers[AWS_ACTION] = 401
        with pytest.raises(NoticeError, match="status 401"):
            watcher.poll(NOON)

    @pytest.mark.parametrize("answer", [403, (200, ""), (200, "two\nlines")])
    def test_no_token(self, watch, service, answer):
        watcher = watch("aws")
        service.answers[AWS_TOKEN] = answer
        with pytest.raises(NoticeError, match="token"):
            watcher.poll(NOON)

    def test_the_word_of_amazons_mock(self, watch, service):
        watcher = watch("aws")
        service.answers[AWS_ACTION] = json.dumps({"instance-action": "stop", "time": TWO_MINUTES_LATER})
        notice = taken(watcher)
        assert (notice.deadline, notice.detail) == (NOON + 120, f"stop at {TWO_MINUTES_LATER}")

    @pytest.mark.parametrize("said", [{"action": "terminate"}, {"action": "terminate", "time": "soon"}])
    def test_a_time_that_cannot_be_read_keeps_no_warning_back(self, watch, service, said):
        watcher = watch("aws")
        service.answers[AWS_ACTION] = json.dumps(said)
        assert taken(watcher).deadline is None


class TestGcp:
    def test_the_grace_period_counts_from_the_first_sight(self, watch, service):
        watcher = watch("gcp")
        watcher.poll(NOON)
        [(_, path, headers)] = service.asked
        assert (path, headers["metadata-flavor"]) == (gcp.PREEMPTED_PATH, "Google"), "it does not wait"
        service.answers[GCP_FLAG] = "true\n"
        assert [taken(watcher, NOON + second).deadline for second in (0, 5)] == [NOON + 30, NOON + 30]
        service.answers[GCP_FLAG] = "FALSE"
        watcher.poll(NOON + 6)
        service.answers[GCP_FLAG] = "TRUE"
        assert taken(watcher, NOON + 8).deadline == NOON + 38


class TestAzure:
    def test_events_of_others_and_of_other_kinds_are_passed_over(self, watch, service):
        watcher = watch("azure")
        service.answers[AZURE_EVENTS] = azure_events(
            preempt("vm-2"),
            preempt("vm-1", kind="Reboot"),
            preempt("vm-10", "xvm-1"),
            "odd",
            {"EventType": "Preempt"},
        )
        assert watcher.poll(NOON) is None

    def test_the_earliest_of_several(self, watch, service):
        watcher = watch("azure")
        late = preempt("vm-1", event="late", not_before="Fri, 15 Jan 2027 09:00:00 GMT")
        service.answers[AZURE_EVENTS] = azure_events(late, preempt("vm-2", "VM-1", event="early"))
        notice = taken(watcher)
        assert (notice.detail, notice.deadline) == ("Preempt, event early", NOON + 30)

    def test_an_event_that_has_started_is_due_now_and_still_the_same(self, watch, service):
        watcher = watch("azure")
        service.answers[AZURE_EVENTS] = azure_events(preempt("vm-1"))
        first = taken(watcher)
        service.answers[AZURE_EVENTS] = azure_events(preempt("vm-1", not_before=""))
        later = taken(watcher, NOON + 10)
        assert (later, later.deadline) == (first, NOON + 10)

    def test_the_name_is_asked_for_once(self, watch, service):
        watcher = watch("azure")
        service.answers[AZURE_NAME] = "scale-set_3"
        service.answers[AZURE_EVENTS] = azure_events(preempt("scale-set_3"))
        assert taken(watcher) == taken(watcher)
        assert ["compute/name" in path for path in service.paths()] == [True, False, False]
        assert {headers["metadata"] for _, _, headers in service.asked} == {"true"}

    def test_a_name_that_is_not_told_is_an_error(self, watch, service):
        watcher = watch("azure")
        service.answers[AZURE_NAME] = 404
        with pytest.raises(NoticeError, match="name"):
            watcher.poll(NOON)


def test_alibaba_says_an_empty_time_while_there_is_none(watch, service):
    watcher = watch("alibaba")
    service.answers[ALIBABA_TIME] = (200, " \n")
    assert watcher.poll(NOON) is None


class TestKubernetes:
    @pytest.fixture
    def before(self) -> Iterator[list[int]]:
        """Counts the signals that reach the handler of before."""
        reached: list[int] = []
        original = signal.signal(signal.SIGTERM, lambda number, frame: reached.append(number))
        yield reached
        signal.signal(signal.SIGTERM, original)

    def test_sigterm_is_a_notice_until_the_watcher_is_closed(self, before, monkeypatch):
        monkeypatch.setattr(kubernetes, "time", SimpleNamespace(time=iter([NOON, NOON + 9]).__next__))
        watcher = KubernetesNotices(grace_s=25.0)
        assert watcher.poll(NOON) is None
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        notice = taken(watcher, NOON + 3)
        assert (notice.received_at, notice.deadline) == (NOON, NOON + 25)
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


@pytest.mark.parametrize("provider", NOTICES.names())
def test_every_provider_is_asked_well_within_its_grace_period(provider):
    plugin = NOTICES.find(provider)
    assert plugin.max_backoff_s <= GRACE_S[provider] / 3
    assert plugin.asks_url == (provider in HTTP_PROVIDERS)


@pytest.mark.parametrize(("interval_s", "backoff_s"), [(0.0, 8.0), (float("inf"), 8.0), (1.0, 0.5)])
def test_impossible_timing_is_refused(interval_s, backoff_s):
    with pytest.raises(ConfigurationError, match=" s; give "):
        NoticePlugin(KubernetesNotices, interval_s, backoff_s)


@pytest.mark.parametrize(
    ("provider", "settings", "message"),
    [
        ("aws", {"base_url": "169.254.169.254"}, "not of the form http://HOST:PORT"),
        ("gcp", {"base_url": "ftp://host"}, "not of the form"),
        ("azure", {"base_url": "http://"}, "not of the form"),
        ("azure", {"base_url": "http://host?x=1"}, "not of the form"),
        ("alibaba", {"base_url": "http://host:99999999"}, "base URL 'http://host:99999999'"),
        ("kubernetes", {"grace_s": -1.0}, r"grace period is -1\.0 s"),
    ],
)
def test_wrong_settings_are_refused_at_once(provider, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        NOTICES.find(provider).watcher(**settings)


def test_notices_and_errors_travel_between_processes():
    notice = Notice("aws", NOON, NOON, "terminate")
    assert pickle.loads(pickle.dumps(notice)) == notice
    assert str(pickle.loads(pickle.dumps(NoticeError("no answer")))) == "no answer"
