"""The benchmark of post-training without guidance: its figures by hand, and what its curves are kept as."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.exploration import guidance_free
from benchmarks.exploration.curves import curve_store
from benchmarks.exploration.guidance_free import (
    ITERATIONS,
    RECIPES,
    STRENGTHS,
    Setting,
    chosen_recipes,
    compare,
    scanned,
    tried,
)
from benchmarks.exploration.learning_curve import Curve

GUIDANCE = {"guided": 3.0, "guidance_free": 1.0}


def learned(score: list[float], trained: int = 50) -> Curve:
    """A curve that is evaluated every ten iterations."""
    length = 10 * (len(score) - 1)
    return Curve(
        iterations=list(range(0, length + 1, 10)),
        score=score,
        exact=[value / 2 for value in score],
        distance=[0.4] * len(score),
        grain=[0.1] * len(score),
        rollouts=[100] * length,
        drafts=[0] * length,
        seconds={"rollout": 1.0 * length, "explore": 0.0, "score": 1.0, "train": 2.0 * length},
        samples={"rollout": 100 * length, "explore": 0, "score": 100, "train": trained * length},
        driver_s=[0.1] * length,
    )


def curves_of(seeds: int = 3) -> dict[tuple[str, int], Curve]:
    return {
        (arm, run_seed): learned(score)
        for arm, score in (("guided", [0.6, 0.7, 0.8]), ("guidance_free", [0.2, 0.4, 0.6, 0.7, 0.8]))
        for run_seed in range(seeds)
    }


def test_the_arms_are_compared_after_as_many_samples_and_after_as_many_passes():
    figures = compare(curves_of(), GUIDANCE)
    assert figures["start"] == {
        "guidance_free": {"score": 0.2, "exact": 0.1}, "guided": {"score": 0.6, "exact": 0.3},
    }  # fmt: skip
    # Eight steps of 100 rollouts, and five rows of 50 samples; twice with guidance.
    assert figures["passes_an_iteration"] == {"guidance_free": 1050, "guided": 2100}
    assert figures["seconds_an_iteration"] == {"guidance_free": 3, "guided": 3}
    by_samples, by_passes = (figures["after"][name] for name in ("trained samples", "passes"))
    assert (by_samples["amount"], by_passes["amount"]) == (20 * 50, 20 * 2100)
    assert [found["guided"]["gain"] for found in (by_samples, by_passes)] == pytest.approx([0.2, 0.2])
    assert [found["guidance_free"]["gain"] for found in (by_samples, by_passes)] == pytest.approx([0.4, 0.6])
    assert by_passes["guidance_free"]["iterations"] == 40
    assert by_passes["guidance_free"]["exact"] == pytest.approx(0.4)
    for found, gain, score in ((by_samples, 0.5, 1.333), (by_passes, 0.333, 1.0)):
        assert found["gain_ratio"] == {"low": gain, "median": gain, "high": gain}
        assert found["score_ratio"]["median"] == found["exact_ratio"]["median"] == score


def test_run_seeds_of_both_arms_count_alone():
    curves = curves_of()
    del curves["guided", 1]
    curves["guidance_free", 1] = learned([0.2] * 5)
    figures = compare(curves, GUIDANCE)
    assert figures["run_seeds"] == 2
    assert figures["after"]["passes"]["guidance_free"]["scores"] == pytest.approx([0.8, 0.8])


def test_a_curve_is_called_alike_wherever_its_model_lies():
    one, other = (Setting(Path(f"/{place}/abc/glyphs-guided")) for place in ("here", "there"))
    wanted = one.wanted("guided", 3.0, RECIPES[0], 0, 20)
    assert wanted.config.model.path == "/here/abc/glyphs-guided" and wanted.config.model.guidance == 3
    tuning = replace(one, prompts=("prompts.train=a.txt", "prompts.evaluate=b.txt"))
    names = {
        made.name
        for made in (
            wanted,
            other.wanted("guided", 3.0, RECIPES[0], 0, 20),
            replace(one, model=Path("/here/another/glyphs-guided")).wanted("guided", 3.0, RECIPES[0], 0, 20),
            tuning.wanted("guided", 3.0, RECIPES[0], 0, 20),
            one.wanted("guided", 2.0, RECIPES[0], 0, 20),
        )
    }
    assert len(names) == 4


def test_a_recipe_is_chosen_by_the_evaluations_after_the_first():
    trials = {(arm, recipe): learned([0.9, 0.1]) for arm in ITERATIONS for recipe in RECIPES}
    trials["guided", RECIPES[2]] = learned([0.1, 0.3])
    trials["guidance_free", RECIPES[1]] = learned([0.1, 0.3])
    assert chosen_recipes(trials) == {"guided": RECIPES[2], "guidance_free": RECIPES[1]}


def test_the_benchmark_reads_the_store_and_ends_with_one_json_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    monkeypatch.setattr("benchmarks.report.environment", lambda: {"commit": "abc"})
    monkeypatch.setattr(sys, "argv", ["guidance_free", "--as-is"])
    model = tmp_path / "made" / "abc" / "glyphs-guided"
    monkeypatch.setattr(guidance_free, "model_folder", lambda: model)
    with pytest.raises(SystemExit):
        guidance_free.main()
    assert "leave out --as-is to make them" in capsys.readouterr().err
    store, tuning = curve_store("guidance_free", "abc"), Setting(model, ("algorithm.group_size=4",))
    for strength, want in scanned(tuning).items():
        store.save(want.name, learned([0.5 if strength == 3 else 0.4]))
    for (_, recipe), want in tried(tuning, GUIDANCE).items():
        store.save(want.name, learned([0.2, 0.4 if recipe == RECIPES[1] else 0.3]))
    for (arm, run_seed), curve in curves_of().items():
        want = Setting(model).wanted(arm, GUIDANCE[arm], RECIPES[1], run_seed, ITERATIONS[arm])
        store.save(want.name, curve)
    guidance_free.main()
    assert not model.exists(), "nothing is made for curves that there are"
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    tuned = figures.pop("tuning")
    assert figures == json.loads(json.dumps(compare(curves_of(), GUIDANCE)))
    assert tuned["recipes"] == dict.fromkeys(ITERATIONS, asdict(RECIPES[1]))
    assert len(tuned["untouched_by_guidance"]) == len(STRENGTHS)
    assert len(tuned["tried"]) == len(RECIPES) * len(ITERATIONS)
