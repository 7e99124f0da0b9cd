"""Curves of a long benchmark: found again for the same commit, configuration and length only."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from benchmarks.exploration import curve_store
from benchmarks.exploration.arms import arm_config
from benchmarks.exploration.curve_store import CurveStore, commits_since, curve_name
from benchmarks.exploration.learning_curve import Curve
from storage.errors import ConfigurationError
from tests.documents import ROOT


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(curve_store, "KEPT", tmp_path / "repository")
    return tmp_path


def curve(last):
    return Curve(iterations=[0, last], exact=[0.1, 0.2])


CONFIG = arm_config("shapes", "plain_grpo", 1)
NAME = curve_name("plain", CONFIG, 8, 4)


def test_a_curve_is_found_for_its_commit_configuration_and_length_only():
    store = CurveStore("speed", "abc")
    store.save(NAME, curve(8))
    assert store.load(NAME) == curve(8)
    assert CurveStore("speed", "def").load(NAME) is None
    other = CONFIG.model_copy(update={"seed": 2})
    others = [
        ("plain", CONFIG, 12, 4),
        ("plain", CONFIG, 8, 2),
        ("plain", other, 8, 4),
        ("nft", CONFIG, 8, 4),
    ]
    assert len({NAME, *(curve_name(*made_with) for made_with in others)}) == 5


@pytest.mark.parametrize("commit", ["unknown", "abc-dirty"])
def test_unknown_code_keeps_nothing(commit, home):
    store = CurveStore("speed", commit)
    store.save("stale", curve(8))
    assert store.load("stale") is None
    assert not (home / "benchmarks" / "speed").exists()


def test_a_half_written_curve_is_not_found(home):
    store = CurveStore("speed", "abc")
    store.save("stale", curve(8))
    (path,) = (home / "benchmarks" / "speed" / "abc").glob("*.json")
    path.rename(path.with_suffix(".writing"))
    assert store.load("stale") is None


def test_curves_that_the_repository_keeps_serve_a_later_commit_that_says_so(home):
    store = CurveStore("speed", "abc", keeps=True)
    store.save(NAME, curve(8))
    assert store.curves({}) == {}
    shutil.rmtree(home / "benchmarks")
    assert CurveStore("speed", "def").load(NAME) is None
    later = CurveStore("speed", "def", earlier=("abc",))
    assert later.load(NAME) == curve(8)
    later.save("stale", curve(8))
    assert CurveStore("speed", "def").load("stale") == curve(8)
    assert store.load("stale") is None


def test_curves_of_a_commit_and_of_all_later_ones_count():
    history = subprocess.run(
        ["git", "rev-list", "--first-parent", "-3", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    if len(history) < 3:
        pytest.skip("a checkout without history")
    newest, middle, _ = (commit[:12] for commit in history)
    assert {newest, middle} <= {*commits_since([middle])}
    assert history[2][:12] not in commits_since([middle])
    assert commits_since([]) == ()
    with pytest.raises(ConfigurationError, match="give commits"):
        commits_since(["no-such-commit"])
