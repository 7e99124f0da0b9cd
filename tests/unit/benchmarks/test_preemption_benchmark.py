"""The benchmark of faults: parts are kept one by one, what is cut off is done again, all make a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet import preemption
from benchmarks.fleet.preemption import SETTINGS, Parts, run_chaos, summarise
from gpu_runtime.chaos.fault_schedule import FAULT_KINDS
from storage.errors import RuntimeFailure


def result(**changes: Any) -> dict[str, Any]:
    """What `spotlight chaos` prints of three faults."""
    counts = dict.fromkeys((*preemption._SUMS, "redone_steps_with_notice_max"), 1)
    return counts | {
        "faults": 3, "redone_steps_without_notice_max": 2, "faults_by_kind": {"kill": 2, "agent_death": 1},
        "commit_interval": 2, "identical_weights": True, "ledger_adds_up": True, "broken_promises": [],
        **changes,
    }  # fmt: skip


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parts:
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(preemption, "run_chaos", lambda home, arguments: result())
    return Parts(SETTINGS, "ray", seed=0, size=6)


def test_the_first_part_that_is_missing_is_next_and_one_that_is_cut_off_leaves_nothing(parts, monkeypatch):
    assert [parts.add()["part"] for _ in range(3)] == [1, 2, 3]
    (parts.folder / "part-0002.json").unlink()
    with monkeypatch.context() as patched, pytest.raises(RuntimeFailure):
        patched.setattr(preemption, "run_chaos", lambda home, arguments: run_chaos(home, ["--faults", "0"]))
        parts.add()
    assert [part["part"] for part in parts.all()] == [1, 3]
    assert parts.add() == parts.all()[1]
    parts.forget()
    assert parts.all() == []


def test_a_part_that_broke_a_promise_leaves_its_runs_to_be_looked_at(parts, monkeypatch):
    parts.add()
    monkeypatch.setattr(preemption, "run_chaos", lambda *_: result(broken_promises=["1 sample was lost"]))
    parts.add()
    assert [file.name for file in sorted(parts.folder.glob("home-*"))] == ["home-0002"]


def test_schedules_differ_by_part_cluster_and_seed_and_have_every_kind(parts):
    def given(of: Parts, number: int, option: str) -> str:
        arguments = of.arguments(number)
        return arguments[arguments.index(option) + 1]

    other, local = Parts(SETTINGS, "ray", 1, 6), Parts(SETTINGS, "local", 0, 6)
    seeds = [given(of, number, "--seed") for of in (parts, other, local) for number in (1, 2)]
    assert len(set(seeds)) == 6
    assert len({one.folder for one in (parts, other, local, Parts(SETTINGS, "ray", 0, 7))}) == 4
    assert set(given(parts, 1, "--kinds").split(",")) == set(FAULT_KINDS)
    assert set(FAULT_KINDS) - set(given(local, 7, "--kinds").split(",")) == {"agent_death"}
    assert set(FAULT_KINDS) - set(given(parts, 2, "--kinds").split(",")) == set(preemption._ENDING)


def test_all_parts_make_one_figure(parts):
    bad = {**parts.add(), "commit": "def", "lost": 4, "identical_weights": False, "broken_promises": ["lost"]}
    figures = summarise([{**parts.add(), "commit": "abc"}, bad])
    assert (figures["faults"], figures["lost"], figures["restarts"]) == (6, 5, 2)
    assert (figures["identical_weights"], figures["ledger_adds_up"]) == (False, True)
    assert figures["broken_promises"] == ["lost"] and figures["commits"] == ["abc", "def"]
    assert figures["faults_by_kind"] == {"kill": 4, "agent_death": 2}
    assert (figures["redone_steps_with_notice_max"], figures["redone_steps_without_notice_max"]) == (1, 2)
    assert [row["part"] for row in figures["parts"]] == [2, 1]
