"""The files a run reads: known by their digests, and not to be changed before a resume."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from gpu_runtime.models.embedded.folder import WEIGHTS_FOLDER
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, ModelError, PromptFileError
from tasks.inputs import input_digests, refuse_changed_inputs


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    for name in ("train", "evaluate"):
        (tmp_path / f"{name}.txt").write_text(f'a red sign that says "{name}"\n')
    shutil.copytree(WEIGHTS_FOLDER / "glyphs", tmp_path / "model")
    return RunConfig.model_validate(
        {
            "model": {"path": str(tmp_path / "model")},
            "prompts": {"train": str(tmp_path / "train.txt"), "evaluate": str(tmp_path / "evaluate.txt")},
        }
    )


def test_digests_are_those_of_the_content(config: RunConfig):
    digests = input_digests(config)
    assert set(digests) == {"digest prompts.train", "digest prompts.evaluate", "digest model"}
    content = Path(config.prompts.train).read_bytes()
    assert digests["digest prompts.train"] == hashlib.sha256(content).hexdigest()
    carried = config.model_copy(update={"model": RunConfig().model})
    assert input_digests(carried)["digest model"] == digests["digest model"], "the same files elsewhere"


def test_a_dataset_of_several_files_is_known_by_all_of_them(config: RunConfig, tmp_path: Path):
    folder = tmp_path / "dataset"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.parquet").write_bytes(name.encode())
    prompts = config.prompts.model_copy(update={"train": str(folder)})
    several = config.model_copy(update={"prompts": prompts})
    environment = input_digests(several)
    (folder / "b.parquet").write_bytes(b"c")
    with pytest.raises(ConfigurationError, match=r"prompts\.train = .*dataset"):
        refuse_changed_inputs(environment, several)


def test_what_has_changed_is_named(config: RunConfig, tmp_path: Path):
    environment = {"torch": "2.13.0", **input_digests(config)}
    refuse_changed_inputs(environment, config)
    refuse_changed_inputs({"torch": "2.13.0"}, config)  # a run of a version that stored none
    (tmp_path / "train.txt").write_text('a red sign that says "other"\n')
    with pytest.raises(ConfigurationError, match=r"prompts\.train = .*train\.txt.*SHA-256.*was.*Put the old"):
        refuse_changed_inputs(environment, config)
    weights = tmp_path / "model" / "transformer" / "diffusion_pytorch_model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(ConfigurationError) as refused:
        refuse_changed_inputs(environment, config)
    assert "prompts.train" in str(refused.value)
    assert "model.path" in str(refused.value)
    assert "prompts.evaluate" not in str(refused.value)


def test_files_that_are_gone(config: RunConfig, tmp_path: Path):
    environment = input_digests(config)
    (tmp_path / "evaluate.txt").unlink()
    with pytest.raises(PromptFileError, match=r"evaluate\.txt' does not exist"):
        refuse_changed_inputs(environment, config)
    (tmp_path / "evaluate.txt").touch()
    (tmp_path / "model" / "codec.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no codec\.safetensors"):
        refuse_changed_inputs(environment, config)
