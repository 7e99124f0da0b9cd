"""Curves of a long benchmark: found again for the same commit, configuration and length only."""

from __future__ import annotations

import shutil

import pytest

from benchmarks import curve_store
from benchmarks.curve_store import CurveStore
from benchmarks.exploration import arm_config
from benchmarks.learning_curve import Curve


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(curve_store, "KEPT", tmp_path / "repository")
    return tmp_path


def curve(last):
    return Curve(iterations=[0, last], exact=[0.1, 0.2])


CONFIG = arm_config("shapes", "plain", 1)


def test_a_curve_is_found_for_its_commit_configuration_and_length_only():
    store = CurveStore("speed", "abc")
    store.save("plain_nft", CONFIG, 8, 4, curve(8))
    assert store.load("plain_nft", CONFIG, 8, 4) == curve(8)
    assert store.load("plain_nft", CONFIG, 12, 4) is None
    assert store.load("plain_nft", CONFIG, 8, 2) is None
    assert store.load("plain_nft", CONFIG.model_copy(update={"seed": 2}), 8, 4) is None
    assert CurveStore("speed", "def").load("plain_nft", CONFIG, 8, 4) is None


@pytest.mark.parametrize("commit", ["unknown", "abc-dirty"])
def test_unknown_code_keeps_nothing(commit, home):
    store = CurveStore("speed", commit)
    store.save("stale", CONFIG, 8, 4, curve(8))
    assert store.load("stale", CONFIG, 8, 4) is None
    assert not (home / "benchmarks" / "speed").exists()


def test_a_half_written_curve_is_not_found(home):
    store = CurveStore("speed", "abc")
    store.save("stale", CONFIG, 8, 4, curve(8))
    (path,) = (home / "benchmarks" / "speed" / "abc").glob("*.json")
    path.rename(path.with_suffix(".writing"))
    assert store.load("stale", CONFIG, 8, 4) is None


def test_curves_that_the_repository_keeps_serve_a_later_commit_that_says_so(home):
    store = CurveStore("speed", "abc")
    store.save("plain_nft", CONFIG, 8, 4, curve(8))
    store.keep()
    shutil.rmtree(home / "benchmarks")
    assert CurveStore("speed", "def").load("plain_nft", CONFIG, 8, 4) is None
    later = CurveStore("speed", "def", earlier=("abc",))
    assert later.load("plain_nft", CONFIG, 8, 4) == curve(8)
    later.save("stale", CONFIG, 8, 4, curve(8))
    assert CurveStore("speed", "def").load("stale", CONFIG, 8, 4) == curve(8)
    assert store.load("stale", CONFIG, 8, 4) is None
