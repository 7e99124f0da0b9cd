"""Providers of spot instances, each by itself: a trace, commands of the user, an autoscaler, a lender."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import httpx
import pytest

from examples.lending_server import Lender, LendingServer, LoadForecast
from gpu_runtime.fleet.capacity import command
from gpu_runtime.fleet.capacity.autoscaler import AutoscalerCapacity
from gpu_runtime.fleet.capacity.command import CommandCapacity, CommandOptions
from gpu_runtime.fleet.capacity.lending import LendingCapacity, LendingOptions
from gpu_runtime.fleet.capacity.protocol import CapacityProvider, Offer
from gpu_runtime.fleet.capacity.registry import CAPACITY, build_capacity, check_capacity
from gpu_runtime.fleet.capacity.trace import TraceCapacity
from gpu_runtime.spot.traces.trace import EventKind, TraceEvent
from storage.config.run_config import RunConfig
from storage.config.runtime import RuntimeConfig
from storage.errors import CapacityError, ConfigurationError, StorageError
from storage.record.run_folder import INSTANCES_FILE
from storage.record.run_store import RunStore
from tests.fake_cluster import FakeCluster
from tests.spot_traces import trace_of
from tests.tampering import set_run

LIMIT_S = 60.0


def names(provider: CapacityProvider) -> list[str]:
    return [offer.instance for offer in provider.offered()]


def awaited(provider: CapacityProvider, expected: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not expected():
        assert time.monotonic() < deadline, provider.offered()
        time.sleep(0.01)


def traced(now: list[float], *told: tuple[float, EventKind, str], notice_s: float = 0.0) -> TraceCapacity:
    """Return a provider that replays events (seconds, kind, instance), with the clock `now[0]`."""
    trace = trace_of([TraceEvent(*event) for event in told])
    return TraceCapacity(trace, notice_s=notice_s, clock=lambda: now[0])


class TestTrace:
    def test_offers_what_is_there_up_to_what_is_wanted(self):
        now = [0.0]
        provider = traced(now, (0.0, "add", "a"), (0.0, "add", "b"), (5.0, "add", "c"), (9.0, "remove", "a"))
        assert names(provider) == [], "nothing is wanted yet"
        provider.wanted(3, None)
        assert names(provider) == ["a", "b"]
        now[0] = 5.0
        assert names(provider) == ["a", "b", "c"]
        provider.wanted(2, None)
        assert names(provider) == ["a", "b", "c"], "the run says which ones go"
        provider.release("b")
        assert names(provider) == ["a", "c"]
        now[0] = 9.0
        assert names(provider) == ["c", "b"], "in place of the one that is gone, the one that was given back"

    def test_a_beginning_after_its_end_is_refused_by_its_setting(self, tmp_path: Path):
        (tmp_path / "t.csv").write_text("0,add,a\n60000,remove,a\n")
        options = {"file": str(tmp_path / "t.csv"), "begins_s": 60.0}
        runtime = RuntimeConfig.model_validate({"capacity": "trace", "options": options, "spot_workers": 1})
        with pytest.raises(ConfigurationError, match=r"runtime\.options\.begins_s is 60 s.* 60 s long"):
            check_capacity(runtime)

    def test_an_instance_that_returns_is_another_one(self):
        """Else the run, which may look only after both, would not lose its worker."""
        now = [0.0]
        provider = traced(
            now,
            (0.0, "add", "a"),
            (30.0, "remove", "a"),
            (31.0, "add", "a"),
            (80.0, "remove", "a"),
            notice_s=20.0,
        )
        provider.wanted(1, None)
        assert names(provider) == ["a"]
        now[0] = 32.0
        [after] = names(provider)
        assert after != "a"
        now[0] = 60.0
        assert provider.offered() == [Offer(after, called_back="the trace takes it soon")]
        now[0] = 80.0
        assert names(provider) == []

    def test_calls_back_what_it_will_take_and_offers_another_one(self):
        now = [0.0]
        provider = traced(now, (0.0, "add", "a"), (0.0, "add", "b"), (60.0, "remove", "a"), notice_s=20.0)
        provider.wanted(1, None)
        assert provider.offered() == [Offer("a")]
        now[0] = 40.0
        assert provider.offered() == [Offer("a", called_back="the trace takes it soon"), Offer("b")]
        provider.release("a")
        assert names(provider) == ["b"], "what will be taken is not offered again"
        now[0] = 60.0
        assert names(provider) == ["b"]


def commands(acquire: str, release: str = "cat > /dev/null", timeout_s: float = 30.0) -> CommandCapacity:
    options = CommandOptions(acquire=acquire, release=release, timeout_s=timeout_s)
    return CommandCapacity(options, cluster="10.0.0.5:6379")


def has_answered(provider: CommandCapacity) -> bool:
    """Whether `acquire` has ended since it was asked last."""
    return provider._acquiring is not None and provider._acquiring.done()


class TestCommand:
    def test_what_a_command_leaves_running_is_not_waited_for(self):
        """Such as the connection that ssh keeps for later commands, which holds the output open."""
        answer = json.dumps({"instances": [{"instance": "i-1"}]})
        provider = commands(f"setsid sleep 20 & echo '{answer}'", timeout_s=3.0)
        provider.wanted(1, None)
        awaited(provider, lambda: has_answered(provider))
        assert (provider.offered(), provider.take_troubles()) == ([Offer("i-1")], [])
        provider.close()

    def test_asks_for_what_is_missing_and_gives_all_back(self):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            answer = json.dumps({"instances": [{"instance": "i-1", "devices": 2, "usd_per_hour": 2.5}]})
            provider = commands(
                f"cat >> {log}; echo >> {log}; echo '{answer}'", f"cat >> {log}; echo >> {log}"
            )
            provider.wanted(2, 60.0)
            awaited(provider, lambda: bool(provider.offered()))
            assert provider.offered() == [Offer("i-1", 2, 2.5)]
            provider.wanted(2, 50.0)  # there already
            provider.close()
            assert [json.loads(line) for line in log.read_text().splitlines()] == [
                {"devices": 2, "deadline_s": 60.0, "cluster": "10.0.0.5:6379", "held": []},
                {"instance": "i-1"},
            ]
            assert provider.take_troubles() == []

    def test_a_command_that_fails_is_reported_in_its_own_words_and_asked_again(self):
        provider = commands("cat > /dev/null; echo quota is used up >&2; exit 3")
        for _ in range(2):
            provider.wanted(1, None)
            awaited(provider, partial(has_answered, provider))
            assert provider.take_troubles() == [
                "runtime.options.acquire ended with status 3: quota is used up"
            ]
        assert provider.offered() == []
        provider.close()

    def test_a_command_that_hangs_is_ended_with_its_children(self):
        provider = commands("sleep 1000 & sleep 1000", timeout_s=0.2)
        provider.wanted(1, None)
        awaited(provider, partial(has_answered, provider))
        assert provider.take_troubles() == [
            "runtime.options.acquire did not end in runtime.options.timeout_s=0.2 s and was ended"
        ]
        provider.close()

    def test_the_end_lets_a_release_finish_and_no_waiting_acquire_begin(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(command, "_CLOSE_S", 0.1)
        done, go_on = tmp_path / "done", tmp_path / "go-on"
        provider = commands(
            f'echo acquire >> {done}; echo \'{{"instances": [{{"instance": "i"}}]}}\'',
            f"while [ ! -e {go_on} ]; do sleep 0.02; done; echo release >> {done}",
        )
        provider.wanted(1, None)
        awaited(provider, lambda: bool(provider.offered()))
        provider.release("i")
        provider.wanted(1, None)
        opener = Timer(0.5, go_on.touch)
        opener.start()
        provider.close()
        assert done.read_text().split() == ["acquire", "release"]
        assert provider.take_troubles() == []

    def test_what_is_no_answer_is_reported(self):
        for said, part in (
            ("hello", "did not write JSON of the form"),
            ('{"instances": [{"devices": 1}]}', "Field required"),
            ('{"instances": [{"instance": "i", "devices": 0}]}', "greater than or equal to 1"),
        ):
            provider = commands(f"cat > /dev/null; echo '{said}'")
            provider.wanted(1, None)
            awaited(provider, partial(has_answered, provider))
            (trouble,) = provider.take_troubles()
            assert part in trouble and "may still be paid for" in trouble, trouble
            assert provider.offered() == []
            provider.close()

    def test_a_release_that_fails_says_what_may_still_be_paid_for(self):
        answer = '{"instances": [{"instance": "i-1"}]}'
        provider = commands(f"cat > /dev/null; echo '{answer}'", "cat > /dev/null; exit 1")
        provider.wanted(1, None)
        awaited(provider, lambda: bool(provider.offered()))
        provider.release("i-1")
        provider.close()
        assert provider.take_troubles() == [
            "i-1 may still be rented and paid for: runtime.options.release ended with status 1: "
            "it wrote no error message"
        ]

    def test_the_next_life_of_a_killed_run_goes_on_with_its_instances_and_gives_all_back(
        self, tmp_path: Path
    ):
        log, file, fails = tmp_path / "log", tmp_path / "instances.json", tmp_path / "fails"
        log.touch()
        answer = json.dumps({"instances": [{"instance": "i-1", "devices": 2, "usd_per_hour": 2.5}]})
        note = f"cat >> {log}; echo >> {log}"
        settings = f"{note}; echo '{answer}'", f"{note}; [ ! -e {fails} ]"

        def noted() -> list[dict[str, Any]]:
            return [json.loads(line) for line in log.read_text().splitlines()]

        killed = commands(*settings)
        killed.keep_in(file, lambda: False)
        killed.wanted(2, None)
        awaited(killed, lambda: has_answered(killed))
        assert noted().pop()["held"] == []

        second = commands(*settings)  # nothing was closed before
        second.keep_in(file, lambda: False)
        assert second.offered() == [Offer("i-1", 2, 2.5)] and second.unproven == {"i-1"}
        second.wanted(2, None)  # they are enough
        second.wanted(3, None)
        awaited(second, lambda: has_answered(second))
        assert [(asked["devices"], asked["held"]) for asked in noted()] == [(2, []), (1, ["i-1"])]
        fails.touch()
        second.release("i-1")
        assert not second.unproven
        awaited(second, lambda: noted()[-1] == {"instance": "i-1"})
        second._commands.shutdown()
        assert len(second.take_troubles()) == 1
        fails.unlink()

        third = commands(*settings)
        third.keep_in(file, lambda: False)
        assert third.offered() == [], "its worker is gone, or the run no longer wanted it"
        third.close()
        assert noted()[3:] == [{"instance": "i-1"}]
        assert third.take_troubles() == [] and not file.exists()

    def test_instances_of_another_cluster_are_released(self, tmp_path: Path):
        log, file = tmp_path / "log", tmp_path / "instances.json"
        file.write_text(json.dumps({"cluster": "10.0.0.4:6379", "held": [vars(Offer("i-1"))], "leaving": []}))
        provider = commands("false", f"cat >> {log}")
        provider.keep_in(file, lambda: False)
        assert provider.offered() == []
        provider.close()
        assert json.loads(log.read_text()) == {"instance": "i-1"} and not file.exists()

    def test_a_run_that_was_taken_over_leaves_the_taker_s_instances_and_file(
        self, store: RunStore, tmp_path: Path
    ):
        log, waits, file = tmp_path / "log", tmp_path / "waits", store.home.run("r") / INSTANCES_FILE
        acquire = (
            "read asked; case $asked in *i-1*) name=i-2;; *) name=i-1;; esac; "
            f'while [ -e {waits} ]; do sleep 0.01; done; echo "{{\\"instances\\": [{{\\"instance\\": '
            '\\"$name\\"}]}"'
        )
        options = {"acquire": acquire, "release": f"cat >> {log}; echo >> {log}"}
        runtime = RuntimeConfig(capacity="command", spot_workers=2, options=options)
        store.create_run("r", RunConfig(), {}, os.getpid())

        def driven(by: RunStore) -> CommandCapacity:
            provider = build_capacity(runtime, FakeCluster(), by.folder("r"))
            assert isinstance(provider, CommandCapacity)
            return provider

        displaced = driven(store)
        displaced.wanted(1, None)
        awaited(displaced, lambda: has_answered(displaced))
        waits.touch()
        displaced.wanted(2, None)
        awaited(displaced, lambda: displaced._acquires is not None)
        set_run(store, "r", host="elsewhere")
        taker_store = RunStore(store.home)
        taker_store.take_over(taker_store.run("r"))
        taker_store.resume_run("r", os.getpid())
        taker, kept = driven(taker_store), file.read_bytes()
        assert names(taker) == ["i-1"]
        waits.unlink()
        displaced.close()
        assert displaced.take_troubles() == []
        assert log.read_text() == '{"instance": "i-2"}\n', "the taker does not know of it"
        assert file.read_bytes() == kept
        taker.close()
        assert log.read_text().endswith('{"instance": "i-1"}\n') and not file.exists()

    @pytest.mark.parametrize(
        "content", ["{}", '{"cluster": "", "held": [{}], "leaving": []}', '{"held": 1, "leaving": []}']
    )
    def test_a_damaged_file_is_refused_and_named(self, tmp_path: Path, content: str):
        file = tmp_path / "instances.json"
        file.write_text(content)
        with pytest.raises(StorageError, match=r"instances\.json is damaged"):
            commands("false").keep_in(file, lambda: False)

    def test_where_the_names_cannot_be_kept_the_run_goes_on(self, tmp_path: Path):
        answer = json.dumps({"instances": [{"instance": "i-1"}]})
        provider = commands(f"echo '{answer}'")
        provider.keep_in(tmp_path / "no-such-folder" / "instances.json", lambda: False)
        provider.wanted(1, None)
        awaited(provider, lambda: has_answered(provider))
        assert provider.offered() == [Offer("i-1")]
        (trouble,) = provider.take_troubles()
        assert "instances.json cannot be written" in trouble
        provider.close()

    def test_commands_are_looked_at_before_a_run(self):
        for acquire, part in (
            ("no-such-program --now", "there is no program no-such-program to run"),
            ("echo 'open", "cannot parse it"),
        ):
            with pytest.raises(ConfigurationError, match=part):
                CommandOptions(acquire=acquire, release="true").check()
        CommandOptions(acquire="cd . && true", release="X=1 env").check()


class TestAutoscaler:
    @pytest.fixture
    def cluster(self) -> FakeCluster:
        return FakeCluster()

    def test_is_asked_when_the_number_changes_and_offers_what_the_cluster_has(self, cluster):
        provider = AutoscalerCapacity(cluster)
        provider.wanted(3, None)
        provider.wanted(3, None)
        assert (cluster.requested, names(provider)) == ([3], [])
        cluster.has["spot"] = 4
        assert names(provider) == ["device-0", "device-1", "device-2"]
        provider.wanted(1, None)
        assert names(provider) == ["device-0", "device-1", "device-2"], "the run says which ones go"
        provider.release("device-0")
        provider.release("device-2")
        assert names(provider) == ["device-1"]
        provider.close()
        assert cluster.requested == [3, 1, 0]

    def test_a_run_that_was_taken_over_leaves_the_request_of_its_new_driver(self, cluster, tmp_path: Path):
        provider = AutoscalerCapacity(cluster)
        provider.keep_in(tmp_path / "instances.json", lambda: True)
        provider.wanted(2, None)
        provider.close()
        assert cluster.requested == [2]

    def test_a_lost_device_is_offered_until_its_worker_is_lost_and_another_one_when_it_is_there(
        self, cluster
    ):
        cluster.has["spot"] = 2
        provider = AutoscalerCapacity(cluster)
        provider.wanted(2, None)
        assert names(provider) == ["device-0", "device-1"]
        cluster.has["spot"] = 1
        assert names(provider) == ["device-0", "device-1"], "the number does not say which one is gone"
        provider.release("device-0")
        assert names(provider) == ["device-1"]
        cluster.has["spot"] = 2
        assert names(provider) == ["device-1", "device-2"]

    def test_that_cannot_be_asked_is_asked_again(self, cluster, monkeypatch):
        def refuse(devices: int) -> None:
            raise CapacityError("it cannot be asked")

        provider = AutoscalerCapacity(cluster)
        with monkeypatch.context() as broken:
            broken.setattr(cluster, "request_spot_devices", refuse)
            provider.wanted(2, None)
        assert provider.take_troubles() == ["it cannot be asked"]
        provider.wanted(2, None)
        assert cluster.requested == [2] and provider.take_troubles() == []


class TestLendingExample:
    def test_a_forecast_goes_on_with_a_rise_and_not_with_a_fall(self):
        for rates, expected in (((1.0, 2.0), 3.0), ((2.0, 1.0), 1.0)):
            forecast = LoadForecast(window_s=4.0)
            for second in range(4):
                forecast.add(second + 0.5, rates[second // 2])
            # The rise is half a device a second, seen from the middle of the later half: 2 + 0.5 · (1 + 1).
            assert forecast.work(4.0, ahead_s=1.0) == pytest.approx(expected)

    def test_it_lends_idle_devices_once_the_load_has_left_room_for_a_while(self):
        now = [0.0]
        lender = Lender(4, margin=1, hold_s=5.0, clock=lambda: now[0])
        assert lender.set_load(0, set(lender.devices)) == [], "nobody wants any"
        lender.wanted(4)
        assert lender.set_load(3, set(lender.devices)) == []
        now[0] = 5.0
        assert lender.set_load(1, {"gpu-1", "gpu-3"}) == [], "3 were needed five seconds ago"
        now[0] = 5.1
        assert lender.set_load(1, {"gpu-1", "gpu-3"}) == ["gpu-1", "gpu-3"], "those without a request"
        lender.set_load(2, {"gpu-0"})
        assert [loan.why for loan in lender.loans] == ["", "serving needs 2 of 4 devices"], "the newest"
        assert lender.set_load(1, {"gpu-0"}) == [], "what is called back counts until it is released"


class TestLending:
    def test_what_a_fleet_lends_and_calls_back_reaches_the_run_over_http(self):
        lender = Lender(devices=4, margin=1)
        idle = set(lender.devices)
        with LendingServer(lender) as server:
            provider = LendingCapacity(LendingOptions(url=server.url), ask_every_s=0.02)
            provider.wanted(3, None)
            awaited(provider, lambda: bool(lender.set_load(1, idle)))
            awaited(provider, lambda: len(provider.offered()) == 2)
            assert names(provider) == ["gpu-0", "gpu-1"]
            lender.set_load(2, idle - {"gpu-0", "gpu-1"})
            awaited(provider, lambda: any(offer.called_back for offer in provider.offered()))
            (called,) = [offer for offer in provider.offered() if offer.called_back]
            assert called == Offer("gpu-1", called_back="serving needs 2 of 4 devices")
            provider.release("gpu-1")
            awaited(provider, lambda: len(lender.offered()) == 1)
            provider.close()
            assert lender.offered() == [] and all(loan.returned_s is not None for loan in lender.loans)

    def test_a_run_that_was_taken_over_gives_back_no_loan_of_its_new_driver(self, tmp_path: Path):
        lender = Lender(devices=2)
        with LendingServer(lender) as server:
            provider = LendingCapacity(LendingOptions(url=server.url), ask_every_s=0.02)
            provider.keep_in(tmp_path / "instances.json", lambda: True)
            provider.wanted(1, None)
            awaited(provider, lambda: bool(lender.set_load(0, set(lender.devices)) or provider.offered()))
            awaited(provider, lambda: bool(provider.offered()))
            provider.close()
            assert len(lender.offered()) == 1

    def test_a_lender_that_is_silent_is_reported_once_and_heard_again(self):
        with LendingServer(Lender(devices=2)) as server:
            url = server.url
        provider = LendingCapacity(LendingOptions(url=url, timeout_s=0.2), ask_every_s=0.05)
        awaited(provider, lambda: bool(provider._troubles))
        (trouble,) = provider.take_troubles()
        assert "the lender does not answer" in trouble
        provider.release("gpu-3")
        provider.close()
        assert provider.take_troubles() == ["gpu-3 may still be lent: the lender did not take it back"]
        for wrong in (url, "http://127.0.0.1:port"):
            with pytest.raises(ConfigurationError, match=r"runtime\.options\.url"):
                LendingOptions(url=wrong, timeout_s=0.2).check()


class TestRefusals:
    """What a lender answers `/release` with; each test says so many times with which status."""

    CALLED_BACK = ({"instance": "gpu-1", "called_back": "serving needs it"},)

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[str]:
        status, times, offers = request.param
        paths: list[str] = []

        def answer(request: httpx.Request) -> httpx.Response:
            paths.append(request.url.path)
            refused = request.url.path == "/release" and paths.count("/release") <= times
            return httpx.Response(status if refused else 200, json={"instances": offers})

        monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(answer)))
        return paths

    def provider(self) -> LendingCapacity:
        return LendingCapacity(LendingOptions(url="http://lender"), ask_every_s=0.01)

    @pytest.mark.parametrize("asked", [(404, 99, ())], indirect=True)
    def test_a_message_that_is_refused_is_reported_and_holds_up_no_other(self, asked: list[str]):
        provider = self.provider()
        provider.release("gpu-9")
        provider.wanted(2, None)
        awaited(provider, lambda: "/wanted" in asked)
        provider.close()
        assert asked.count("/release") == 1
        assert provider.take_troubles() == ["the lender refused /release {'instance': 'gpu-9'} with 404"]

    @pytest.mark.parametrize("asked", [(409, 99, CALLED_BACK)], indirect=True)
    def test_an_instance_whose_release_is_refused_is_released_once(self, asked: list[str]):
        """It would be offered, found to be called back and released again for ever."""
        provider = self.provider()
        awaited(provider, lambda: names(provider) == ["gpu-1"])
        provider.release("gpu-1")
        awaited(provider, lambda: "/release" in asked)
        seen = len(asked)
        awaited(provider, lambda: len(asked) > seen + 3)
        assert names(provider) == []
        provider.close()
        assert len(provider.take_troubles()) == 1

    @pytest.mark.parametrize("asked", [(429, 2, ())], indirect=True)
    def test_a_message_that_is_not_taken_for_now_is_sent_again(self, asked: list[str]):
        provider = self.provider()
        provider.release("gpu-1")
        awaited(provider, lambda: asked.count("/release") == 3)
        provider.close()
        assert not [trouble for trouble in provider.take_troubles() if "may still be lent" in trouble]


class TestSettings:
    def test_options_are_those_of_the_provider(self):
        config = RunConfig.model_validate(
            {"runtime": {"capacity": "command", "options": {"acquire": "true"}}}
        )
        with pytest.raises(ConfigurationError, match=r"runtime\.options\.release"):
            CAPACITY.stored(config)
        static = RunConfig.model_validate({"runtime": {"options": {"acquire": "true"}}})
        with pytest.raises(ConfigurationError, match=r"runtime\.options"):
            CAPACITY.stored(static)
        assert CAPACITY.stored(RunConfig()) == RunConfig()
        assert CAPACITY.names()[:5] == ["static", "trace", "command", "lending", "ray"]

    def test_what_leaves_no_room_for_a_decision_is_refused(self):
        for runtime, more, part in (
            ({"capacity": "ray", "spot_workers": 0}, {}, "runtime.spot_workers"),
            ({"capacity": "ray", "spot_workers": "auto"}, {}, "runtime.spot_workers"),
            ({"capacity": "ray"}, {"sequence_parallel": {"rollout": 2}}, "sequence_parallel"),
            ({"capacity": "cloud"}, {}, "choose one of static, trace"),
        ):
            config = RunConfig.model_validate({"runtime": runtime, **more})
            with pytest.raises(ConfigurationError) as refused:
                CAPACITY.stored(config)
            assert part in str(refused.value)

    def test_files_and_autoscalers_are_looked_for_before_a_run(self):
        missing = {"capacity": "trace", "options": {"file": "no-such-trace.csv"}}
        with pytest.raises(ConfigurationError, match=r"runtime\.options\.file.*no-such-trace"):
            check_capacity(RuntimeConfig.model_validate(missing))
        with pytest.raises(ConfigurationError, match="needs the autoscaler of a Ray cluster"):
            check_capacity(RuntimeConfig(capacity="ray"))
