"""The benchmark of faults in parts: what is kept, what is done again, and what all parts say together."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import benchmarks.fleet.fault_parts
from benchmarks.fleet.fault_parts import CLUSTERS, PACK, Part, Parts, Reference
from benchmarks.fleet.preemption import SETTINGS, Results, summarise
from flows.disturbed_run import DisturbedRun
from gpu_runtime.chaos.fault_schedule import FAULT_KINDS
from storage.errors import RuntimeFailure
from storage.home import Home

REFERENCE = Reference("abc", 3, began_s=10.0, wall_s=30.0, digests={3: {"weights.safetensors": "00"}})
COUNTS: dict[str, int] = dict.fromkeys(
    ("samples", "lost", "duplicated_deliveries", "late_deliveries_dropped", "redone_steps_with_notice_max",
     "redone_steps_without_notice_max", "losses_with_notice", "losses_without_notice", "steps_needed",
     "steps_redone"), 1,
)  # fmt: skip


def part(number: int, **changes) -> Part:
    kept = Part(
        number, "abc", "2026-11-22T00:00:00+00:00", "a machine", 60.0, 3, {"kill": 2, "agent_death": 1}, 1, 1,
        False, True, True, (), COUNTS,
    )  # fmt: skip
    return dataclasses.replace(kept, **changes)


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parts:
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(benchmarks.fleet.fault_parts, "start", lambda *_: pytest.fail("a run was started"))
    series = Parts(SETTINGS, "ray", seed=0, size=6, iterations=3)
    series.folder.mkdir(parents=True, exist_ok=True)
    (series.folder / "reference.json").write_text(json.dumps(dataclasses.asdict(REFERENCE)))
    return series


def test_a_part_and_the_reference_are_read_as_they_were_written(parts, monkeypatch):
    monkeypatch.setattr(parts, "_disturbed", lambda number, _: part(number, broken=("a promise",)))
    assert parts.add() == parts.all()[0] == part(1, broken=("a promise",))
    assert parts.reference() == REFERENCE


def test_the_first_part_that_is_missing_is_next_and_one_that_is_cut_off_leaves_nothing(parts, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(parts, "_disturbed", lambda number, _: part(number))
        parts.add()
        parts.forget()
        assert [parts.add().number for _ in range(3)] == [1, 2, 3]
    (parts.folder / "part-0002.json").unlink()
    asked: list[str] = []

    def cut_off(home: Home, run_id: str, *_: object) -> DisturbedRun:
        asked.append(run_id)
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmarks.fleet.fault_parts, "disturb", cut_off)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            parts.add()
    assert [one.number for one in parts.all()] == [1, 3]
    assert len(set(asked)) == 2 and all(run_id.startswith("part-2-") for run_id in asked)


def test_schedules_differ_by_part_and_begin_with_the_run(parts):
    one, again, other = parts.faults(1, REFERENCE), parts.faults(1, REFERENCE), parts.faults(2, REFERENCE)
    assert one == again != other and len(one) == 6
    for fault in (*one, *other):
        assert fault.at_s is None or 10 <= fault.at_s <= 10 + 1.5 * 30
        assert fault.iteration is None or fault.iteration < 2


def test_each_kind_of_fault_is_in_the_pack():
    on_ray, local = (Parts(SETTINGS, cluster, 0, 6, 3) for cluster in CLUSTERS)
    assert set(on_ray.kinds) == set(FAULT_KINDS) and len(on_ray.kinds) == PACK == 50
    assert set(on_ray.kinds) - set(local.kinds) == {"agent_death"}
    assert on_ray.faults(1, REFERENCE) != local.faults(1, REFERENCE)


def test_another_cluster_seed_or_size_is_another_series(parts):
    assert Parts(SETTINGS, "ray", 0, 6, 3).folder == parts.folder
    others = (("local", 0, 6), ("ray", 1, 6), ("ray", 0, 7))
    folders = {Parts(SETTINGS, *other, 3).folder for other in others}
    assert len(folders) == 3 and parts.folder not in folders


def test_an_undisturbed_run_that_fails_is_an_error(parts, monkeypatch):
    class Failed:
        def wait(self) -> int:
            return 1

    (parts.folder / "reference.json").unlink()
    monkeypatch.setattr(benchmarks.fleet.fault_parts, "start", lambda *_: Failed())
    with pytest.raises(RuntimeFailure, match=r"the undisturbed run .* failed"):
        parts.reference()


def test_all_parts_make_one_figure():
    bad = part(2, commit="def", hung=True, identical=False, broken=("1 samples were lost",),
               counts={**COUNTS, "lost": 4})  # fmt: skip
    figures = summarise({"ray": Results([part(1), bad], REFERENCE)})
    assert (figures["faults"], figures["faults_left"], figures["restarts"]) == (6, 2, 2)
    assert (figures["lost"], figures["hangs"], figures["identical_weights"]) == (5, 1, False)
    assert figures["broken_promises"] == ["1 samples were lost"]
    assert figures["faults_by_kind"] == {"kill": 4, "agent_death": 2}
    assert figures["commits"] == ["abc", "def"] and [
        row["part"] for row in figures["clusters"]["ray"]["parts"]
    ] == [1, 2]
    alone = summarise({"local": Results([part(1)], REFERENCE)})
    assert alone["identical_weights"] and alone["hangs"] == 0 and alone["lost"] == 1
