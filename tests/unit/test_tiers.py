"""The tiers of the tests: what may take long, what is measured, and which tests go to one worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.tiers import Reading

ROOT = Path(__file__).resolve().parents[2]

CONFTEST = """
import sys
sys.path.insert(0, {root!r})
from tests.tiers import *  # noqa
"""
TESTS = """
import time
import pytest

def work(seconds=0.4):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass

@pytest.fixture(scope="module")
def expensive():
    work()

def test_short(): pass
def test_long(): work()
@pytest.mark.slow
def test_slow(): work()
@pytest.mark.takes(60)
def test_allowed(): work()
@pytest.mark.takes(0.1)
def test_longer_than_it_says(): work()
def test_pays_for_its_fixture(expensive): pass
def test_has_it_already(expensive): pass
"""
INI = "[pytest]\nlongest_s = 0.15\nmarkers =\n    slow: s\n    takes(seconds): t\n    xdist_group(name): g\n"


def outcome(folder: Path, *options: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST.format(root=str(ROOT)))
    (folder / "test_them.py").write_text(TESTS)
    (folder / "pytest.ini").write_text(INI)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *options],
        cwd=folder, capture_output=True, text=True, env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    return done.stdout


def test_a_test_that_takes_too_long_fails_unless_it_is_marked(tmp_path: Path):
    said = outcome(tmp_path, "-m", "not slow")
    for name in ("short", "allowed", "has_it_already"):
        assert f"PASSED test_them.py::test_{name}" in said, said
    for name in ("long", "longer_than_it_says", "pays_for_its_fixture"):
        assert f"FAILED test_them.py::test_{name}" in said, said
    assert "s, but may take 0.1 s: make it faster" in said


def test_where_all_tests_run_they_may_take_as_long_as_they_must(tmp_path: Path):
    said = outcome(tmp_path)
    for name in ("slow", "long", "longer_than_it_says", "pays_for_its_fixture"):
        assert f"PASSED test_them.py::test_{name}" in said, said


def test_the_first_tier_leaves_out_what_is_slow(tmp_path: Path):
    said = outcome(tmp_path, "-m", "not slow", "-k", "short or slow")
    assert "1 passed" in said
    assert "test_slow" not in said


def test_what_waits_for_a_processor_is_not_held_against_a_test():
    before = Reading(wall_s=100.0, cpu_s=7.0, contended_s=50.0)
    assert Reading(110.0, 11.0, 59.0).spent_since(before) == 2.0, "4 s of a shared core, 9 of 10 s contended"
    assert Reading(110.0, 7.5, 51.0).spent_since(before) == 9.0, "it waited on an idle machine"
    assert Reading(101.0, 17.0, 50.0).spent_since(before) == 5.0, "several threads, or children"


def test_time_given_to_another_virtual_machine_counts_as_contended(tmp_path, monkeypatch):
    pressure, times = tmp_path / "pressure", tmp_path / "stat"
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\nfull total=0\n")
    ticks = os.sysconf("SC_CLK_TCK")
    times.write_text(f"cpu  1 2 3 4 5 6 7 {2 * ticks} 0 0\ncpu0 1 2 3 4 5 6 7 {ticks} 0 0\n")
    with monkeypatch.context() as patched:  # this test's own time is read with the real ones
        patched.setattr("tests.tiers._PRESSURE", pressure)
        patched.setattr("tests.tiers._TIMES", times)
        read = Reading.now()
    assert read.contended_s == 5.0


def test_the_clocks_go_forward():
    first = Reading.now()
    sum(range(2_000_000))
    assert Reading.now().spent_since(first) > 0
