"""What a run cannot work with is refused before anything starts: prompts, adapters, devices."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from gpu_runtime.cluster.slots import refuse_shared_gpus
from gpu_runtime.models.embedded.folder import WEIGHTS_FOLDER
from gpu_runtime.models.embedded.model import EmbeddedModel
from gpu_runtime.rewards.registry import SCORERS
from gpu_runtime.scheduling.scores import Score
from storage.config.loading import load_with_sources
from storage.config.run_config import EvaluationConfig, RewardConfig, RunConfig
from storage.config.sequence_parallel import AUTO, MOST_DEGREE
from storage.errors import ConfigurationError, ModelError, PromptFileError
from storage.prompts.files import PromptRecord
from tasks.checks import preflight, quick_checks
from tasks.checks.quick_checks import with_read_options
from tasks.inputs import images_in_words, input_digests, refuse_changed_inputs


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


def test_a_run_that_works_only_warns(tmp_path: Path):
    [warning] = preflight.check(config(tmp_path))
    assert "20 of 20 held-out prompts are also training prompts" in warning
    assert preflight.check(RunConfig()) == []


@pytest.mark.parametrize("setting", ["spot_workers", "standby_workers", "scorer_workers"])
def test_two_cores_serve_sixteen_processes_and_eight_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
):
    def warnings(count: int) -> list[str]:
        others = {"spot_workers": 1, "cluster": "ray"} | {setting: count - (setting == "spot_workers")}
        return list(quick_checks.check_inputs(config(tmp_path, runtime=others)).warnings)

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert warnings(8) == []
    assert ["9 workers share 2 cores" in one for one in warnings(9)] == [True] * (setting == "spot_workers")
    warnings(16)
    with pytest.raises(ConfigurationError, match=r" = 17, but this machine has 2 cores: set at most 16 "):
        warnings(17)


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


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "ImportError: no engine"),
        *((value, rf"score {value} is not in \[0") for value in (float("nan"), 7.0, -1.0)),
    ],
)
def test_a_scorer_that_does_not_work_or_whose_scores_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float | None, said: str
):
    class Broken:
        name = "ocr"

        def check(self, prompt: object) -> None: ...

        def score(self, image_HWC: object, prompt: object) -> Score:
            if value is None:
                raise ImportError("no engine")
            return Score(value, False, "")

    monkeypatch.setattr(preflight, "build_scorer", lambda settings: Broken())
    with pytest.raises(ConfigurationError, match=rf"reward\.scorer = 'ocr' fails.*{said}"):
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


def test_devices_that_train_together_each_need_a_gpu_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    together = {"reserved_workers": 2, "trainer_workers": 2}
    with pytest.raises(ConfigurationError, match=r"trainer_workers is 2, but 4 workers would share 3 GPUs"):
        preflight.check(config(tmp_path, runtime=together | {"spot_workers": 2}))
    refuse_shared_gpus(config(tmp_path, runtime=together | {"spot_workers": 1}), 3, 3)
    refuse_shared_gpus(config(tmp_path, runtime={"reserved_workers": 2, "spot_workers": 2}), 4, 3)
    on_cpu = {"model": {"device": "cpu"}, "runtime": together | {"spot_workers": 2}}
    preflight.check(config(tmp_path, **on_cpu))
    judged = {"scorer_workers": 4, "scorer_gpu": 0.25, "spot_workers": 1}
    said = "would share 2 GPUs left beside the scorers;.*lower runtime.scorer_gpu or runtime.spot_workers, or"
    with pytest.raises(ConfigurationError, match=said):
        refuse_shared_gpus(config(tmp_path, runtime=together | judged), 3, 3)
    shared = {"runtime": {"spot_workers": 3}, "sequence_parallel": {"rollout": 2}}
    with pytest.raises(ConfigurationError, match="samples are shared, but 4 workers would share 3 GPUs"):
        preflight.check(config(tmp_path, **shared))


@pytest.mark.parametrize(
    ("runtime", "workers", "gpus", "said"),
    [
        (
            {"spot_workers": 3},
            4,
            1,
            "4 workers would share 1 GPU; .*: lower runtime.spot_workers, or set all",
        ),
        (
            {"reserved_workers": 3},
            3,
            2,
            "3 workers would share 2 GPUs; .*: lower runtime.reserved_workers, or",
        ),
        (
            {"reserved_workers": 3, "scorer_workers": 2, "scorer_gpu": 1.0},
            3,
            1,
            "share 0 GPUs left beside.*: lower runtime.scorer_gpu or runtime.reserved_workers, or",
        ),
        ({"reserved_workers": "auto", "spot_workers": "auto"}, 4, 1, "its own GPU: set all degrees of"),
    ],
)
def test_the_advice_for_workers_that_would_share_gpus(
    runtime: dict[str, Any], workers: int, gpus: int, said: str
):
    settings = {"spot_workers": 0} | runtime
    run = RunConfig.model_validate({"runtime": settings, "sequence_parallel": {"rollout": "auto"}})
    with pytest.raises(ConfigurationError, match=f"^samples may be shared, but .*{said}"):
        refuse_shared_gpus(run, workers, gpus)
    refuse_shared_gpus(run, 1, 0.5)  # one worker shares with none


def test_no_standby_where_workers_have_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    RunConfig.model_validate({"runtime": {"standby_workers": 1, "spot_workers": 0, "reserved_workers": 2}})
    run = config(tmp_path, runtime={"standby_workers": 1})
    preflight.check(run)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigurationError, match=r"runtime.standby_workers = 1, but the workers have GPUs"):
        preflight.check(run)
    preflight.check(run.changed(model={"device": "cpu"}))


def test_local_processes_take_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    local = {"cluster": "local"}
    with pytest.raises(ConfigurationError, match=r"only on the CPU, but model.device=auto is a GPU here"):
        preflight.check(config(tmp_path, runtime=local))
    preflight.check(config(tmp_path, runtime=local, model={"device": "cpu"}))


def test_auto_takes_what_divides_and_says_so_where_nothing_does(tmp_path: Path):
    auto = {"rollout": "auto", "evaluate": "auto"}
    for spot_workers, warned in ((3, False), (0, True)):
        run = config(tmp_path, runtime={"spot_workers": spot_workers}, sequence_parallel=auto)
        assert any("every device will work alone" in said for said in preflight.check(run)) is warned


def test_a_preset_is_named_as_the_source_of_its_option(tmp_path: Path):
    preset = tmp_path / "own.toml"
    preset.write_text("[reward.options]\nlayout = 3\n")
    config, sources = load_with_sources(str(preset), [], {})
    with pytest.raises(ConfigurationError, match=r"layout = 3 \(from preset .*own\.toml\): must be one of"):
        with_read_options(config, sources)
    with pytest.raises(ConfigurationError, match=r"^reward\.options\.layout = 3: must be one of"):
        with_read_options(config)


def test_it_is_frozen():
    with pytest.raises(ValidationError):
        RunConfig().seed = 3  # type: ignore[misc]


def test_it_imports_without_the_heavy_libraries():
    # A GPU machine with torch alone, the dashboard, and the Prefect form all read it.
    heavy = "{'torch', 'ray', 'prefect', 'streamlit', 'mlflow', 'duckdb'}"
    program = f"import sys, storage.config.run_config; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_degree_that_measured_times_choose_is_stored_as_it_is_written():
    shared = {"rollout": "auto", "evaluate": 2}
    config = RunConfig.model_validate({"runtime": {"spot_workers": 3}, "sequence_parallel": shared})
    assert config.model_dump(mode="json")["sequence_parallel"] == shared | {"explore": 1}
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert RunConfig.model_validate(config.model_dump()) == config
    assert (config.sequence_parallel.rollout, config.sequence_parallel.largest) == (AUTO, MOST_DEGREE)
    assert config.sequence_parallel.is_measured and not RunConfig().sequence_parallel.is_measured
    assert RunConfig().sequence_parallel.largest == 1


@pytest.fixture
def copied_config(tmp_path: Path) -> RunConfig:
    for name in ("train", "evaluate"):
        (tmp_path / f"{name}.txt").write_text(f'a red sign that says "{name}"\n')
    shutil.copytree(WEIGHTS_FOLDER / "glyphs", tmp_path / "model")
    return RunConfig.model_validate(
        {
            "model": {"path": str(tmp_path / "model")},
            "prompts": {"train": str(tmp_path / "train.txt"), "evaluate": str(tmp_path / "evaluate.txt")},
        }
    )


def test_digests_are_those_of_the_content(copied_config: RunConfig):
    digests = input_digests(copied_config)
    assert set(digests) == {"digest prompts.train", "digest prompts.evaluate", "digest model"}
    content = Path(copied_config.prompts.train).read_bytes()
    assert digests["digest prompts.train"] == hashlib.sha256(content).hexdigest()
    carried = copied_config.model_copy(update={"model": RunConfig().model})
    assert input_digests(carried)["digest model"] == digests["digest model"], "the same files elsewhere"


def test_a_dataset_of_several_files_is_known_by_all_of_them(copied_config: RunConfig, tmp_path: Path):
    folder = tmp_path / "dataset"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.parquet").write_bytes(name.encode())
    prompts = copied_config.prompts.model_copy(update={"train": str(folder)})
    config = copied_config.model_copy(update={"prompts": prompts})
    environment = input_digests(config)
    (folder / "b.parquet").write_bytes(b"c")
    with pytest.raises(ConfigurationError, match=r"prompts\.train = .*dataset"):
        refuse_changed_inputs(environment, config)


def test_what_has_changed_is_named(copied_config: RunConfig, tmp_path: Path):
    environment = {"torch": "2.13.0", **input_digests(copied_config)}
    refuse_changed_inputs(environment, copied_config)
    refuse_changed_inputs({}, copied_config)  # no digest was stored
    (tmp_path / "train.txt").write_text('a red sign that says "other"\n')
    with pytest.raises(
        ConfigurationError, match=r"prompts\.train = .*train\.txt.*SHA-256.*was.*Restore the old"
    ):
        refuse_changed_inputs(environment, copied_config)
    weights = tmp_path / "model" / "transformer" / "diffusion_pytorch_model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(ConfigurationError, match=r"prompts\.train.*model\.path") as refused:
        refuse_changed_inputs(environment, copied_config)
    assert "prompts.evaluate" not in str(refused.value)


def test_the_file_of_a_reward_is_an_input(copied_config: RunConfig, tmp_path: Path):
    mine = tmp_path / "mine.py"
    mine.write_text("def r(image, prompt):\n    return 1.0\n\n\ndef j(image, prompt):\n    return 0.0\n")
    others = Path(shutil.copy(mine, tmp_path / "others.py"))
    content = hashlib.sha256(mine.read_bytes()).hexdigest()

    def judged(reward: dict[str, Any], judge: str = "") -> RunConfig:
        changes = {"reward": RewardConfig(**reward), "evaluation": EvaluationConfig(judge=judge)}
        return copied_config.model_copy(update=changes)

    alone = judged({"scorer": f"{mine}:r"}, f"{mine}:j")
    parts = {"parts": {f"{mine}:r": 1.0, "jpeg": 1.0, f"{others}:j": 1.0}}
    summed = judged({"scorer": "sum", "options": parts})
    facts, of_parts = input_digests(alone), input_digests(summed)
    assert facts["digest reward"] == facts["digest evaluation.judge"] == content
    assert of_parts["digest reward"] not in (content, "")
    assert "digest evaluation.judge" not in of_parts
    refuse_changed_inputs(input_digests(judged({"scorer": "jpeg"})), alone)  # it has no digest of a reward
    mine.write_text(mine.read_text() + "# changed\n")
    both = r"reward in .*mine\.py \(SHA-256 .*evaluation\.judge in .*mine\.py \(.*Restore the old ones"
    with pytest.raises(ConfigurationError, match=both):
        refuse_changed_inputs(facts, alone)
    with pytest.raises(ConfigurationError, match=r"reward in .*mine\.py, .*others\.py \(SHA-256 "):
        refuse_changed_inputs(of_parts, summed)


def test_the_files_of_a_strategy_and_an_objective_are_inputs(
    copied_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mine = Path(shutil.copy(Path(__file__).parents[3] / "examples" / "own_strategy.py", tmp_path))
    objective = tmp_path / "objective.py"
    objective.write_text(
        "from gpu_runtime.learning.registry import ObjectivePlugin\n\n"
        "MINE = ObjectivePlugin(lambda *given: None)\n"
    )
    config = copied_config.changed(
        exploration={"strategy": f"{mine}:BEST_AND_WORST"}, algorithm={"objective": f"{objective}:MINE"}
    )
    facts = input_digests(config)
    refuse_changed_inputs(facts, config)
    refuse_changed_inputs(input_digests(copied_config), config)  # it has no digest of them
    for file in (mine, objective):
        file.write_text(file.read_text() + "# changed\n")
    said = (
        r"exploration\.strategy in .*own_strategy\.py \(SHA-256 .*algorithm\.objective in .*objective\.py \("
    )
    with pytest.raises(ConfigurationError, match=said):
        refuse_changed_inputs(facts, config)
    mine.unlink()
    monkeypatch.delitem(sys.modules, f"file {mine}")
    with pytest.raises(ConfigurationError, match=r"own_strategy\.py.* does not exist"):
        refuse_changed_inputs(facts, config)


def test_a_reward_that_a_package_imports_from_another_file_is_known_by_both(
    copied_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    package = tmp_path / "reexporting"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from functools import partial\nfrom gpu_runtime.rewards.registry import ScorerPlugin\n"
        "from reexporting.impl import blue, plugin, Judge\nfrom storage.config.plugins import lazily\n\n"
        "called, half = Judge(), partial(blue)\nlazy = ScorerPlugin(lazily('reexporting.impl:Judge'))\n"
    )
    impl = package / "impl.py"
    impl.write_text(
        "from gpu_runtime.rewards.registry import ScorerPlugin\n\n\n"
        "def blue(image, prompt):\n    return 1.0\n\n\n"
        "class Judge:\n    def __call__(self, image, prompt):\n        return 1.0\n\n\n"
        "plugin = ScorerPlugin(Judge)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("blue", "plugin", "called", "half", "lazy"):
        name = f"reexporting:{name}"
        config = copied_config.model_copy(update={"reward": RewardConfig(scorer=name)})
        facts = input_digests(config)
        impl.write_text(impl.read_text() + "# changed\n")
        with pytest.raises(ConfigurationError, match=r"reward in .*__init__\.py, .*impl\.py \(SHA-256 "):
            refuse_changed_inputs(facts, config)


def test_the_code_of_a_decorated_or_lazy_reward_in_one_file_is_that_file(tmp_path: Path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import torch\nfrom gpu_runtime.rewards.registry import ScorerPlugin\n"
        "from storage.config.plugins import lazily\n\n\n"
        "@torch.no_grad()\ndef blue(image, prompt):\n    return 1.0\n\n\n"
        "class Judge:\n    def __call__(self, image, prompt):\n        return 1.0\n\n\n"
        "called, lazy = Judge(), ScorerPlugin(lazily('mine:Judge'))\n"
    )
    for name in ("blue", "called", "lazy"):
        assert SCORERS.find(f"{mine}:{name}")
        assert SCORERS.sources(f"{mine}:{name}") == [mine]


def test_weights_are_read_once_until_they_change(copied_config: RunConfig, tmp_path: Path, monkeypatch):
    read: list[str] = []
    digest = hashlib.file_digest

    def counted(file: io.BufferedReader, name: str) -> Any:
        read.append(Path(file.name).name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    weights = tmp_path / "model" / "transformer" / "diffusion_pytorch_model.safetensors"
    before, again = (input_digests(copied_config) for _ in range(2))
    assert (again, read.count(weights.name)) == (before, 1)
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    assert input_digests(copied_config) != before
    assert read.count(weights.name) == 2


def test_files_that_are_gone(copied_config: RunConfig, tmp_path: Path):
    environment = input_digests(copied_config)
    (tmp_path / "evaluate.txt").unlink()
    with pytest.raises(PromptFileError, match=r"evaluate\.txt' does not exist"):
        refuse_changed_inputs(environment, copied_config)
    (tmp_path / "evaluate.txt").touch()
    (tmp_path / "model" / "codec.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no codec\.safetensors"):
        refuse_changed_inputs(environment, copied_config)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [("plain", "12 images"), ("stale", "12 images"), ("auto", "12 images (20 while nothing is explored)")],
)
def test_the_images_of_an_iteration_are_those_that_it_trains_on(strategy: str, words: str):
    """Three prompt groups of four are trained on, of five explored; `auto` trains on all of five at first."""
    settings = {
        "algorithm": {"prompts_per_iteration": 3, "group_size": 4},
        "exploration": {"strategy": strategy, "prompts": 5},
    }
    assert images_in_words(RunConfig.model_validate(settings)) == words


def test_a_run_of_pairs_alone_is_checked_by_its_first_held_out_prompt():
    given, held_out = PromptRecord(0, "a", pair=("good.png", "bad.png")), PromptRecord(0, "b")
    assert quick_checks.first_judged([given], [held_out]) == held_out
    assert quick_checks.first_judged([given, PromptRecord(1, "c")], [held_out]).text == "c"
