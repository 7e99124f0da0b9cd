"""The examples run, and the one of the algorithm computes what a run does."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import spotlight
from benchmarks.cost.bare_loop import run as bare_loop
from examples import algorithm, own_reward, own_strategy, run_curves
from gpu_runtime.exploration.registry import build_explorer
from gpu_runtime.learning.weights import weights_digest
from gpu_runtime.rewards.registry import build_scorer, chosen_scorer
from gpu_runtime.scheduling.scores import Score
from storage.config.loading import load_config
from storage.config.run_config import RewardConfig
from storage.errors import ConfigurationError
from storage.home import Home
from storage.prompts.files import PromptRecord
from storage.record.run_store import RunStore
from tests.even_drafts import draft_evenly
from tests.sample_run import write_sample_run
from tests.tiny_exploration import explore, make_config

ROOT = Path(__file__).resolve().parents[3]


def test_every_example_is_run_here():
    named = {"algorithm", "run_curves", "own_reward", "own_strategy"}
    named |= {"plain_reward"}  # in test_function_rewards.py
    named |= {"judge_server"}  # in test_rewards_vlm.py
    named |= {"lending_server"}  # in test_capacity_providers.py
    named |= {"own_reader"}  # in test_own_reader.py
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == named


def test_the_algorithm_is_one_readable_file():
    lines = (ROOT / "examples" / "algorithm.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 200


def test_the_algorithm_ends_with_the_weights_of_a_run():
    config = load_config("smoke", ["seed=3"], {})
    example = algorithm.Algorithm(config, drafts=0)
    untrained = [weight.detach().clone() for weight in example.weights]
    rewards = example.run(2)
    assert not all(torch.equal(a, b) for a, b in zip(untrained, example.weights, strict=True))
    named = example.model.transformer.named_parameters()
    state = {name: weight.detach().numpy() for name, weight in named}
    expected = bare_loop(config, 2)
    assert rewards == pytest.approx(expected.rewards, abs=0)
    assert weights_digest(state) == expected.digest


def test_exploration_keeps_the_seeds_whose_rewards_differ_most(monkeypatch: pytest.MonkeyPatch):
    example = algorithm.Algorithm(load_config("smoke", [], {}), drafts=8)
    bright = lambda image, _: Score(float(image.mean()) / 255, False, "")  # noqa: E731
    monkeypatch.setattr(example, "scorer", SimpleNamespace(score=bright))
    plan = example.explore(1)
    assert len(plan) == 4
    for prompt, kept in plan:
        images, _ = example.rollout([(prompt, seed) for seed in range(8)], 1)
        brightness = np.array([image.mean() / 255 for image in images])
        variances = {group: brightness[list(group)].var() for group in itertools.combinations(range(8), 4)}
        assert tuple(kept) == max(variances, key=variances.__getitem__)
    assert any(tuple(kept) != (0, 1, 2, 3) for _, kept in plan)


def test_the_algorithm_runs_as_a_script(tmp_path: Path):
    answer = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "algorithm.py"), "--iterations", "1", "--drafts", "4"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert answer.stdout.startswith("iteration 1: reward 0.")
    assert "of 4 prompts gave a gradient" in answer.stdout


def test_a_runs_curves_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    out = tmp_path / "curves.html"
    monkeypatch.setattr(sys, "argv", ["run_curves.py", "--out", str(out)])
    with pytest.raises(SystemExit, match="no runs yet"):
        run_curves.main()
    write_sample_run(RunStore(Home(tmp_path / "home")), "my-run", iterations=3)
    run_curves.main()
    assert "my-run" in out.read_text(encoding="utf-8")
    run = spotlight.load_run("my-run")
    traces: Any = run_curves.figure_of(run).data
    reward, score, *states = traces
    assert list(reward.y) == run.curves["reward_mean"].tolist()
    assert list(score.y) == run.scores["score"].tolist()
    assert {bars.name for bars in states} == {"reserved", "spot"}
    assert sum(sum(bars.y) for bars in states) == pytest.approx(sum(run.ledger["device_s"].tolist()) / 3600)


def test_a_reward_of_ones_own_is_named_in_the_settings():
    reward = RewardConfig(scorer="examples.own_reward:COLOURFUL", options={"full_at": 60})
    scorer = build_scorer(reward)
    grey, red_and_blue = np.full((4, 4, 3), 128, np.uint8), np.zeros((4, 4, 3), np.uint8)
    red_and_blue[:2, :, 0] = red_and_blue[2:, :, 2] = 255
    scores = [scorer.score(image, PromptRecord(0, "any")) for image in (grey, red_and_blue)]
    assert [score.value for score in scores] == [0.0, 1.0]
    # By hand: red - green is 255 or 0, (red + green) / 2 - blue is 127.5 or -255; half the pixels each.
    assert scores[1].detail == f"{np.hypot(127.5, 191.25):.1f}"
    assert not chosen_scorer(reward).plugin.gives_verdict
    with pytest.raises(ConfigurationError, match=r"reward\.options\.full_at = 0: must be above 0"):
        build_scorer(reward.model_copy(update={"options": {"full_at": 0}}))
    assert isinstance(scorer, own_reward.Colourfulness)


@pytest.mark.parametrize(("best", "seeds"), [(0.5, (0, 7)), (1.0, (6, 7)), (0.0, (0, 1))])
def test_a_strategy_of_ones_own_is_named_in_the_settings(best: float, seeds: tuple[int, ...], monkeypatch):
    draft_evenly(monkeypatch)
    config = make_config(strategy="examples.own_strategy:BEST_AND_WORST", options={"best": best})
    explorer = build_explorer(config, [PromptRecord(number, "any") for number in (4, 5)])
    assert isinstance(explorer.strategy, own_strategy.BestAndWorst)
    plan = explore(explorer, 1, lambda prompt, seed: seed / 7)
    assert plan.seeds == {4: seeds, 5: seeds}
    assert explore(explorer, 2, lambda prompt, seed: seed / 7, budget=0).seeds == {4: (0, 1), 5: (0, 1)}
