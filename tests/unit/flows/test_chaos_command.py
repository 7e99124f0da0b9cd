"""`spotlight chaos`: its faults and traces, and what it makes of a run that is over."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import flows.server.prefect_server
from flows import disturbed_run
from flows.cli import chaos
from gpu_runtime.chaos.fault_injector import FaultInjector
from gpu_runtime.chaos.fault_schedule import FAULT_KINDS, Fault
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.home import Home
from tasks.chaos.faults import GRACES_S, plan_faults
from tasks.chaos.replayed_trace import plan_trace


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home of the test's own; whatever would start a run is an error."""

    def refuse(*_: object) -> None:
        raise AssertionError("a run was to be started")

    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(flows.server.prefect_server, "prefect_server", refuse)
    monkeypatch.setattr(disturbed_run, "start", refuse)
    return Home(tmp_path / "home")


def config(*changes: str) -> RunConfig:
    return load_config("smoke", [*chaos.SETTINGS, *changes], {})


def faults(
    settings: RunConfig, length_s: float, seed: int, count: int | None = None, kinds: list[str] | None = None
) -> tuple[Fault, ...]:
    plan = plan_faults(settings, seed, count, kinds, None)
    return plan.faults(length_s, settings.iterations, settings.runtime.lease_s)


def test_by_default_each_kind_comes_once_and_the_seed_decides_the_rest():
    drawn = faults(config(), 60.0, 3)
    assert sorted(fault.kind for fault in drawn) == sorted(FAULT_KINDS)
    assert drawn == faults(config(), 60.0, 3) != faults(config(), 60.0, 4)


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
    for fault in faults(settings, 50.0, 0, 40):
        assert fault.at_s is None or fault.at_s <= 50
        assert fault.iteration is None or fault.iteration < 3
        assert fault.grace_s is None or fault.grace_s in GRACES_S
        assert fault.duration_s is None or 1 <= fault.duration_s <= 14


def test_scorers_and_coordinators_may_die_without_spot_workers():
    drawn = faults(config("runtime.spot_workers=0"), 9.0, 0, 4, ["scorer_death", "coordinator_restart"])
    assert {fault.kind for fault in drawn} == {"scorer_death", "coordinator_restart"}


def test_the_kinds_advised_without_spot_workers_fit_the_run(tmp_path):
    settings = config("runtime.spot_workers=0", "runtime.cluster=local")
    with pytest.raises(ConfigurationError, match="needs a spot worker") as refused:
        plan_faults(settings, 0, None, None, None)
    advised = str(refused.value).rpartition("--kinds ")[2].split(",")
    assert plan_faults(settings, 0, None, advised, None).count == len(advised)
    schedule = tmp_path / "faults.json"
    schedule.write_text('[{"kind": "kill", "at_s": 1}]')
    with pytest.raises(ConfigurationError, match=r"kill needs a spot worker.*or drop that fault"):
        plan_faults(settings, 0, None, None, schedule)


def test_what_met_nobody_is_left_for_the_next_run_and_comes_sooner(tmp_path):
    timed, triggered = Fault(kind="kill", at_s=30.0), Fault(kind="kill", iteration=2, phase="train")
    injector = FaultInjector(tmp_path, [timed, triggered])
    assert injector.undone(20.0) == (Fault(kind="kill", at_s=10.0), triggered)
    assert injector.undone(50.0) == (Fault(kind="kill", at_s=0.0), triggered)


def test_a_wrong_setting_is_refused_before_the_runtime_is_imported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tasks.chaos.faults", None)
    with pytest.raises(ConfigurationError, match="iterations"):
        chaos.chaos(set_=["iterations=none"])


def test_an_undisturbed_run_without_weights_ends_it_before_any_fault(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    ended = SimpleNamespace(wait=lambda: 0)
    monkeypatch.setattr(disturbed_run, "start", lambda *_: ended)  # and it leaves no weights
    monkeypatch.setattr(disturbed_run, "disturb", lambda *_: pytest.fail("a run was disturbed"))
    settings = config()
    with pytest.raises(KeyError):
        chaos._disturbed(home, settings, [], plan_faults(settings, 0, 1, ["kill"], None))


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


def test_a_trace_is_thinned_to_what_is_asked_for_and_joined_by_settings(tmp_path):
    several = "0,add,a\n0,add,b\n1000,add,c\n5000,remove,a\n5000,remove,c\n"
    (tmp_path / "trace.csv").write_text(several)
    plan = plan_trace(config(), str(tmp_path / "trace.csv"), most=2, notice_s=3.0)
    assert [event.instance for event in plan.fitted.events] == ["a", "c", "a", "c"]
    assert plan.settings("here:1") == [
        "runtime.cluster=here:1", "runtime.spot_workers=2", "runtime.notices=kubernetes",
    ]  # fmt: skip
    said = "trace trace.csv: 3 instances in 0.0 h, at most 3 at once, 2 losses; 2 are replayed"
    assert said in plan.describe()
    drawn = [plan_trace(config(), "generated", seed) for seed in (1, 1, 2)]
    assert drawn[0].whole == drawn[1].whole != drawn[2].whole
    assert [(each.most, each.notice_s) for each in (plan, drawn[0])] == [(2, 3.0), (4, 0.0)]
    with pytest.raises(ConfigurationError, match="but 2 would share a sample"):
        plan_trace(config("sequence_parallel.rollout=2"), "generated")
