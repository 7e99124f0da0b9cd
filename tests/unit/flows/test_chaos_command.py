"""`spotlight chaos`: what it refuses before anything starts, and what it makes of a run that is over."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import flows.server.prefect_server
from flows.cli import chaos, command_line
from gpu_runtime.chaos.fault_injector import FaultInjector
from gpu_runtime.chaos.fault_schedule import FAULT_KINDS, Fault
from storage.config.loading import load_config
from storage.errors import ConfigurationError
from storage.home import Home
from tasks.chaos.faults import GRACES_S, left_of, plan_faults
from tasks.chaos.replayed_trace import plan_trace


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home of the test's own; whatever would start a run is an error."""

    def refuse(*_: object) -> None:
        raise AssertionError("a run was to be started")

    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(flows.server.prefect_server, "prefect_server", refuse)
    monkeypatch.setattr(chaos, "start", refuse)
    return Home(tmp_path / "home")


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Home):
    """Calls the command, which has to refuse; its message on one line."""

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["spotlight", "chaos", *arguments])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        answer = capsys.readouterr()
        assert ended.value.code == 2 and answer.out == ""
        assert home.run_ids() == [] and not home.database.exists()
        return " ".join(answer.err.split())

    return call


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--preset", "gliphs"), ("no preset 'gliphs'", "did you mean glyphs")),
        (("--faults", "0"), ("--faults is 0", "give at least 1")),
        (("--kinds", "kill,flood"), ("no fault 'flood'", "there are kill, notice_then_kill")),
        (("--schedule", "nowhere.json"), ("--schedule nowhere.json cannot be read",)),
        (("--set", "model.path=missing-model"), ("missing-model", "no spotlight.json")),
        (("--set", "runtime.spot_workers=0"), ("runtime.spot_workers is 0", "needs a spot worker")),
        (("--set", 'runtime.cluster="10.0.0.7:6379"'), ("processes of this machine", "set it to ray")),
        (("--preset", "glyphs-stale"), ("set exploration.stop_with_training=false",)),
        (("--set", "runtime.history=false"), ("runtime.history is false", "leave it out")),
        (("--set", "runtime.cluster=local", "--kinds", "agent_death"), ("no agents of Ray", "cluster=ray")),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(refusal, arguments, says):
    message = refusal(*arguments)
    assert message.startswith("error: ")
    for part in says:
        assert part in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kill everyone", "is not JSON"),
        ('{"kind": "kill"}', "write a list"),
        ("[]", "holds no faults"),
        ('[{"kind": "flood", "at_s": 1}]', "unknown fault 'flood'"),
        ('[{"kind": "kill"}]', "give either at_s, or iteration and phase"),
    ],
)
def test_a_schedule_that_is_none_is_refused(refusal, tmp_path, text, says):
    schedule = tmp_path / "faults.json"
    schedule.write_text(text)
    message = refusal("--preset", "smoke", "--schedule", str(schedule))
    assert str(schedule) in message and says in message


@pytest.mark.parametrize("also", [("--faults", "3"), ("--kinds", "kill")])
def test_a_schedule_and_a_draw_at_once_are_refused(refusal, tmp_path, also):
    schedule = tmp_path / "faults.json"
    schedule.write_text('[{"kind": "kill", "at_s": 1}]')
    assert "leave out --faults and --kinds" in refusal("--schedule", str(schedule), *also)


def config(*changes: str):
    return load_config("smoke", [*chaos.SETTINGS, *changes], {})


def test_by_default_each_kind_comes_once_and_the_seed_decides_the_rest():
    plan = plan_faults(config(), 3, None, None, None)
    drawn = plan.faults(60.0, config())
    assert sorted(fault.kind for fault in drawn) == sorted(FAULT_KINDS)
    assert drawn == plan.faults(60.0, config())
    assert drawn != plan_faults(config(), 4, None, None, None).faults(60.0, config())


def test_a_server_or_ray_of_others_is_left_alone(monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    settings = config('runtime.cluster="127.0.0.1:6379"')
    assert {"server_death", "agent_death"} == set(FAULT_KINDS) - set(
        plan_faults(settings, 0, None, None, None).kinds
    )
    with pytest.raises(ConfigurationError, match=r"server_death would find no victim: PREFECT_API_URL"):
        plan_faults(settings, 0, None, ["server_death", "kill"], None)


def test_faults_fit_the_run_they_are_drawn_for():
    settings = config("iterations=3", "runtime.lease_s=7")
    for fault in plan_faults(settings, 0, 40, None, None).faults(50.0, settings):
        assert fault.at_s is None or fault.at_s <= 50
        assert fault.iteration is None or fault.iteration < 3
        assert fault.grace_s is None or fault.grace_s in GRACES_S
        assert fault.duration_s is None or 1 <= fault.duration_s <= 14


def test_scorers_and_coordinators_may_die_without_spot_workers():
    settings = config("runtime.spot_workers=0")
    plan = plan_faults(settings, 0, 4, ["scorer_death", "coordinator_restart"], None)
    assert {fault.kind for fault in plan.faults(9.0, settings)} == {"scorer_death", "coordinator_restart"}


def test_what_met_nobody_is_left_for_the_next_run_and_comes_sooner(tmp_path):
    timed, triggered = Fault("kill", at_s=30.0), Fault("kill", iteration=2, phase="train")
    injector = FaultInjector(tmp_path, [timed, triggered])
    assert left_of(injector, 20.0) == (Fault("kill", at_s=10.0), triggered)
    assert left_of(injector, 50.0) == (Fault("kill", at_s=0.0), triggered)


def result(**changes):
    kept = {
        "faults": 5, "faults_left": 0, "lost": 0, "duplicated_deliveries": 0, "hangs": 0,
        "redone_steps_with_notice_max": 1, "redone_steps_without_notice_max": 2, "commit_interval": 2,
        "identical_weights": True, "ledger_adds_up": True, "broken_promises": [],
    }  # fmt: skip
    return kept | changes


def test_the_table_says_which_promise_was_broken(capsys):
    chaos.show(result())
    assert "NO" not in capsys.readouterr().out
    chaos.show(result(lost=3, broken_promises=["3 samples were lost, such as a"]))
    shown = capsys.readouterr().out
    assert shown.count("NO") == 1 and "broken: 3 samples were lost" in shown


def trace_file(folder: Path, text: str = "0,add,a\n9000,remove,a\n") -> str:
    (folder / "trace.csv").write_text(text)
    return str(folder / "trace.csv")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--most", "3"), "give --trace too"),
        (("--trace", "TRACE", "--faults", "3"), "leave out --faults, --kinds and --schedule"),
        (("--trace", "nowhere.csv"), "nowhere.csv"),
        (("--trace", "TRACE", "--set", "runtime.cluster=127.0.0.1:6379"), "Ray instances of its own"),
        (("--trace", "TRACE", "--set", "runtime.cluster=local"), "runtime.cluster is local; set it to ray"),
        (("--trace", "TRACE", "--degree", "2", "--set", "runtime.spot_workers=2"), "one worker each"),
        (("--trace", "TRACE", "--set", "model.device=cuda"), "set model.device=cpu"),
        (("--trace", "TRACE", "--notice", "inf"), "a notice of inf s"),
        (("--trace", "TRACE", "--preset", "glyphs-stale"), "set exploration.stop_with_training=false"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused(refusal, tmp_path, arguments, says):
    name = trace_file(tmp_path)
    assert says in refusal(*(name if part == "TRACE" else part for part in arguments))


def test_a_trace_in_which_nothing_happens_is_refused(refusal, tmp_path):
    assert "no instance comes or goes" in refusal("--trace", trace_file(tmp_path, "0,add,a\n"))


def test_a_trace_is_thinned_to_what_is_asked_for_and_joined_by_settings(tmp_path):
    several = "0,add,a\n0,add,b\n1000,add,c\n5000,remove,a\n5000,remove,c\n"
    plan = plan_trace(config(), trace_file(tmp_path, several), most=2, notice_s=3.0)
    assert [event.instance for event in plan.fitted.events] == ["a", "c", "a", "c"]
    assert plan.settings("here:1") == [
        "runtime.cluster=here:1", "runtime.spot_workers=2", "runtime.notices=kubernetes",
    ]  # fmt: skip
    assert (
        "trace trace.csv: 3 instances in 0.0 h, at most 3 at once, 2 losses; 2 are replayed"
        in plan.describe()
    )
    drawn = [plan_trace(config(), "generated", seed) for seed in (1, 1, 2)]
    assert drawn[0].whole == drawn[1].whole != drawn[2].whole
