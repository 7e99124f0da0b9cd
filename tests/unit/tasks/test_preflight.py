"""What a run cannot work with is refused before anything starts: prompts, adapters, devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_runtime.models import loading
from gpu_runtime.models.embedded.model import EmbeddedModel
from gpu_runtime.rewards.protocol import Score
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, ModelError, PromptFileError, SpotlightError
from tasks.checks import preflight, quick_checks


def config(folder: Path, **sections: dict[str, Any]) -> RunConfig:
    """Glyphs with a good file of 20 prompts each, one iteration's worth; `sections` override."""
    good = folder / "good.txt"
    good.write_text("".join(f'a red sign that says "A{number:02}"\n' for number in range(20)))
    base: dict[str, Any] = {
        "prompts": {"train": str(good), "evaluate": str(good)},
        "evaluation": {"prompts": 20},
    }
    merged = {name: base.get(name, {}) | sections.get(name, {}) for name in base.keys() | sections.keys()}
    return RunConfig.model_validate(merged)


def with_line(folder: Path, number: int, line: str) -> str:
    """A file like the good one, but for the line of one prompt (counted from 1)."""
    lines = [f'a blue sign that says "B{place:02}"' for place in range(20)]
    lines[number - 1] = line
    path = folder / "one-is-bad.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_run_that_works_only_warns(tmp_path: Path):
    [warning] = preflight.check(config(tmp_path))
    assert "20 of 20 held-out prompts are trained on too" in warning
    assert preflight.check(RunConfig()) == []


@pytest.mark.parametrize("setting", ["train", "evaluate"])
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a sign without a text", ("has no text in double quotes", "fit scorer 'ocr'")),
        ('a sign that says "ABCDEFGHIJKL"', ("has 16 tokens; this model takes 1 to 8", "change the prompt")),
    ],
)
def test_every_prompt_is_checked(tmp_path: Path, setting: str, line: str, says: tuple[str, ...]):
    path = with_line(tmp_path, 17, line)
    with pytest.raises(SpotlightError) as refused:
        preflight.check(config(tmp_path, prompts={setting: path}))
    assert isinstance(refused.value, (PromptFileError, ConfigurationError))
    assert str(refused.value).startswith(f"prompts.{setting} = {path!r}, prompt number 17: prompt {line!r}")
    for part in says:
        assert part in str(refused.value)


def test_the_line_is_named_where_it_is_not_the_number(tmp_path: Path):
    path = tmp_path / "gaps.txt"
    path.write_text("".join(f'a red sign that says "A{number:02}"\n\n' for number in range(20)) + "no text\n")
    with pytest.raises(PromptFileError, match=r"prompt number 21 \(line 41\): prompt 'no text' has no text"):
        preflight.check(config(tmp_path, prompts={"train": str(path)}))


@pytest.mark.parametrize(
    ("reward", "refused", "says"),
    [
        (
            {"scorer": "geneval", "options": {"detector": "no/such"}},
            ModelError,
            r"reward\.options\.detector = 'no/such' is no folder",
        ),
        (
            {
                "scorer": "sum",
                "options": {"parts": {"jpeg": 1, "clip-score": {"weight": 1, "clip": "no/such"}}},
            },
            ModelError,
            r"reward\.options\.parts\.clip-score\.clip = 'no/such' is no folder",
        ),
        (
            {"scorer": "remote", "options": {"url": "http://127.0.0.1:9/score", "attempts": 1}},
            ConfigurationError,
            "no server answers at reward.options.url = 'http://127.0.0.1:9/score'",
        ),
    ],
)
def test_a_scorer_without_what_it_needs(
    tmp_path: Path, reward: dict[str, Any], refused: type[SpotlightError], says: str
):
    with pytest.raises(refused, match=says):
        preflight.check(config(tmp_path, reward=reward))


@pytest.mark.parametrize(
    ("reward", "names"),
    [
        ({}, "ocr"),
        (
            {"scorer": "sum", "options": {"parts": {"jpeg": 1, "ocr": {"weight": 2, "layout": "page"}}}},
            "jpeg, ocr",
        ),
    ],
)
def test_a_gpu_that_no_scorer_would_use(tmp_path: Path, reward: dict[str, Any], names: str):
    refused = rf"runtime\.scorer_gpu is 0\.5, but {names} judges on the CPU; leave it out"
    with pytest.raises(ConfigurationError, match=refused):
        preflight.check(config(tmp_path, reward=reward, runtime={"scorer_gpu": 0.5}))
    with pytest.raises(ModelError, match="is no folder here"):  # one judge that would use it is enough
        parts = {"ocr": 1, "clip-score": {"weight": 1, "clip": "no/such"}}
        large = {"scorer": "sum", "options": {"parts": parts}}
        preflight.check(config(tmp_path, reward=large, runtime={"scorer_gpu": 0.5}))


def test_rows_of_the_shapes_task(tmp_path: Path):
    row = {"prompt": "a photo of a dog", "include": [{"class": "dog", "count": 1}]}
    path = tmp_path / "rows.jsonl"
    good = {"prompt": "a photo of a circle", "include": [{"class": "circle", "count": 1}]}
    path.write_text("".join(json.dumps(r) + "\n" for r in [good] * 16 + [row]))
    wanted = config(
        tmp_path,
        model={"path": "embedded:shapes"},
        reward={"scorer": "shapes"},
        prompts={"train": str(path), "evaluate": "builtin:shapes-evaluate"},
    )
    with pytest.raises(PromptFileError, match=r"prompts\.train = .*number 17.*`class` 'dog'.*knows circle"):
        preflight.check(wanted)


def test_adapters_that_name_no_layer(tmp_path: Path):
    with pytest.raises(ModelError, match=r"adaptation\.targets=\['to_nothing'\] names no layer"):
        preflight.check(config(tmp_path, adaptation={"mode": "lora", "targets": ["to_nothing"]}))


@pytest.mark.parametrize(
    ("exploration", "says"),
    [
        ({"strategy": "stale", "fidelities": ["full", "preview-10"]}, "with K from 1 to .* = 9"),
        ({"strategy": "fresh", "fidelities": ["draft"]}, "fidelity 'draft' is unknown"),
        ({"strategy": "fresh", "fidelities": ["full", "steps-10"]}, "with K from 1 to .* = 9"),
        ({"strategy": "stale", "fidelities": ["full", "steps-5"]}, "needs sampling.sde=none, and it is flow"),
        ({"strategy": "stale", "prompts": 24}, "24 prompts an iteration are asked of 20"),
    ],
)
def test_exploration_that_cannot_be_met(tmp_path: Path, exploration: dict[str, Any], says: str):
    with pytest.raises(ConfigurationError, match=says):
        preflight.check(config(tmp_path, exploration=exploration))


@pytest.mark.parametrize(
    ("notices", "says"),
    [
        ("none@http://10.0.0.1", "none asks no address"),
        ("kubernetes@http://10.0.0.1", "name one of aws, gcp, azure, alibaba"),
        ("gcp@", r"runtime\.notices: base URL ''.* as in gcp@http://HOST:PORT"),
        ("gcp@metadata.internal", r"runtime\.notices: base URL 'metadata.internal' is not"),
        ("oracle", r"runtime\.notices = 'oracle': unknown name"),
        ("gcs", "did you mean gcp"),
    ],
)
def test_notices_that_cannot_be_watched(tmp_path: Path, notices: str, says: str):
    with pytest.raises(ConfigurationError, match=says):
        preflight.check(config(tmp_path, runtime={"notices": notices}))


class Judged(Exception):
    """The model has been loaded."""


def test_the_model_is_loaded_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def load(path: str, device: str = "cpu") -> None:
        assert device == "cpu"
        raise Judged

    monkeypatch.setattr(EmbeddedModel, "load", load)
    with pytest.raises(Judged):
        preflight.check(config(tmp_path))
    monkeypatch.setattr(quick_checks, "refuse_silent_address", lambda address: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cuda = {"device": "cuda"}
    with pytest.raises(Judged):  # the cluster has the GPUs, this machine needs none
        preflight.check(config(tmp_path, model=cuda, runtime={"cluster": "far:6379"}))
    with pytest.raises(ConfigurationError, match="no CUDA device is visible here"):
        preflight.check(config(tmp_path, model=cuda))


def test_a_scorer_that_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Broken:
        name = "ocr"

        def check(self, prompt: object) -> None: ...

        def score(self, image_HWC: object, prompt: object) -> None:
            raise ImportError("no engine")

    monkeypatch.setattr(preflight, "build_scorer", lambda settings: Broken())
    with pytest.raises(ConfigurationError, match=r"reward\.scorer = 'ocr' fails.*ImportError: no engine"):
        preflight.check(config(tmp_path))


@pytest.mark.parametrize("value", [float("nan"), 7.0, -1.0])
def test_a_scorer_whose_scores_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float):
    class Wild:
        name = "ocr"

        def check(self, prompt: object) -> None: ...

        def score(self, image_HWC: object, prompt: object) -> Score:
            return Score(value, False, "")

    monkeypatch.setattr(preflight, "build_scorer", lambda settings: Wild())
    with pytest.raises(
        ConfigurationError, match=rf"reward\.scorer = 'ocr' fails.*score {value} is not in \[0"
    ):
        preflight.check(config(tmp_path))


@pytest.mark.parametrize("kind", ["rollout", "evaluate"])
def test_degrees_that_sequences_do_not_divide_by(tmp_path: Path, kind: str):
    wanted = {"runtime": {"spot_workers": 7}, "sequence_parallel": {kind: 3}}
    said = (
        rf"sequence_parallel\.{kind} = 3: .*4 attention heads do not divide by degree 3; below it, 1, 2 would"
    )
    with pytest.raises(ConfigurationError, match=said):
        preflight.check(config(tmp_path, **wanted))
    preflight.check(config(tmp_path, **{**wanted, "sequence_parallel": {kind: 4}}))


def test_more_devices_a_sample_than_there_are():
    with pytest.raises(ValueError, match=r"sequence_parallel\.rollout is 4, but there are 3 workers"):
        RunConfig.model_validate({"runtime": {"spot_workers": 2}, "sequence_parallel": {"rollout": 4}})


def test_devices_that_train_together_each_need_a_gpu_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    together = {"reserved_workers": 2, "trainer_workers": 2}
    with pytest.raises(ConfigurationError, match=r"trainer_workers is 2, and 4 workers would share 3 GPUs"):
        preflight.check(config(tmp_path, runtime=together | {"spot_workers": 2}))
    loading.refuse_shared_gpus(config(tmp_path, runtime=together | {"spot_workers": 1}))
    loading.refuse_shared_gpus(config(tmp_path, runtime={"reserved_workers": 2, "spot_workers": 2}))
    on_cpu = {"model": {"device": "cpu"}, "runtime": together | {"spot_workers": 2}}
    loading.refuse_shared_gpus(config(tmp_path, **on_cpu))


def test_no_standby_where_workers_have_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = config(tmp_path, runtime={"standby_workers": 1})
    preflight.check(run)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigurationError, match=r"runtime.standby_workers = 1, but the workers have GPUs"):
        preflight.check(run)
    preflight.check(run.model_copy(update={"model": run.model.model_copy(update={"device": "cpu"})}))


def test_no_standby_where_every_worker_trains():
    alone = {"standby_workers": 1, "spot_workers": 0}
    with pytest.raises(ValueError, match=r"runtime.standby_workers is 1, but every worker trains"):
        RunConfig.model_validate({"runtime": alone})
    RunConfig.model_validate({"runtime": alone | {"reserved_workers": 2}})


def test_local_processes_take_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    local = {"cluster": "local"}
    with pytest.raises(ConfigurationError, match=r"on the CPU alone, and model.device=auto is a GPU here"):
        preflight.check(config(tmp_path, runtime=local))
    preflight.check(config(tmp_path, runtime=local, model={"device": "cpu"}))


def test_auto_takes_what_divides_and_says_so_where_nothing_does(tmp_path: Path):
    auto = {"rollout": "auto", "evaluate": "auto"}
    for spot_workers, warned in ((3, False), (0, True)):
        run = config(tmp_path, runtime={"spot_workers": spot_workers}, sequence_parallel=auto)
        assert any("every device will work alone" in said for said in preflight.check(run)) is warned
