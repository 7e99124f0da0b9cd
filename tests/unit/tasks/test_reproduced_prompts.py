"""A reproduction is judged by all prompts of GenEval, where the run's own evaluations between have some."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.deployed.forms import ReproductionForm
from flows.reproduction_inputs import config_again
from storage.config.run_config import RunConfig
from storage.home import Home
from storage.prompts.files import PromptRecord
from storage.prompts.of_a_run import compared_prompts, load_run_prompts
from storage.record.checkpoints import CheckpointStore
from tasks.iteration.phases import evaluate
from tasks.reproduction import scored_again


class Asked:
    """In the place of a run's devices: keeps how many prompts each evaluation has."""

    def __init__(self, config: RunConfig) -> None:
        _, self.evaluate_prompts = load_run_prompts(config)
        self.compared_prompts = compared_prompts(config, self.evaluate_prompts)
        self.restore = lambda blobs, version: None
        self.asked: list[int] = []

    def evaluate(self, prompts: list[PromptRecord]) -> Any:
        self.asked.append(len(prompts))
        return SimpleNamespace(samples=[], scores=[])


@pytest.fixture
def config() -> RunConfig:
    """Of the reproduction of a GenEval preset."""
    return config_again(ReproductionForm(preset="qwen-image-geneval-512"), None)


def test_a_run_done_again_has_all_of_them_before_and_after(config: RunConfig):
    devices = Asked(config)
    session: Any = SimpleNamespace(
        config=config, last_iteration=config.iterations, runtime=devices, timed=lambda phase: nullcontext()
    )
    for iteration in (0, config.evaluation.every, config.iterations):
        evaluate.fn(session, iteration)
    assert devices.asked == [553, 96, 553]


def test_a_checkpoint_scored_again_has_all_of_them(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made: list[Asked] = []

    def runtime(config: RunConfig, cluster: Any) -> Any:
        made.append(Asked(config))
        return nullcontext(made[0])

    newest = SimpleNamespace(blobs={}, state={"policy_version": 1}, iteration=config.iterations)
    monkeypatch.setattr(CheckpointStore, "load_latest", lambda self, passes_over: newest)
    monkeypatch.setattr(scored_again, "open_cluster", lambda config: nullcontext())
    monkeypatch.setattr(scored_again, "Runtime", runtime)
    monkeypatch.setattr(scored_again, "input_digests", lambda config: {})
    scored_again.evaluate_again.fn(Home(tmp_path).ensure(), config, "was")
    assert made[0].asked == [553]
