"""A run that starts from a LoRA: what `spotlight export`, diffusers or peft wrote, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.weights import weights_digest
from gpu_runtime.models.files.lora_file import LORA_FILE, check_lora, write_lora
from gpu_runtime.models.registry import FAMILIES
from storage.config.run_config import AdaptationConfig
from storage.errors import ModelError
from tests.tiny_model import TinyModel
from tests.tiny_run import perturbed
from tests.unit.gpu_runtime.learning.test_policy import velocity_of

LORA = AdaptationConfig(mode="lora", rank=2, targets=("to_q", "to_out.0"))


def trained() -> Policy:
    policy = Policy(TinyModel(), LORA, seed=0)
    policy.load(perturbed(policy.state()))
    return policy


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    write_lora(FAMILIES.find("embedded").pipeline(), tmp_path / "lora", trained().state(), LORA)
    return tmp_path / "lora"


@pytest.mark.parametrize("named", ["", LORA_FILE])
def test_an_export_is_the_same_policy_to_the_bit(exported: Path, named: str):
    policy = Policy(TinyModel(), LORA, seed=7, adapter=str(exported / named))
    assert weights_digest(policy.state()) == weights_digest(trained().state())


@pytest.mark.parametrize("named", ["", "adapter_model.safetensors"])
def test_what_peft_wrote_is_loaded_with_its_own_alpha(tmp_path: Path, named: str):
    model: Any = TinyModel()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layout = LoraConfig(r=2, lora_alpha=3, target_modules=list(LORA.targets), init_lora_weights=False)
        get_peft_model(model.transformer, layout).save_pretrained(str(tmp_path))
    ours = TinyModel()
    Policy(ours, LORA, seed=0, adapter=str(tmp_path / named))
    torch.testing.assert_close(velocity_of(ours), velocity_of(model), atol=1e-6, rtol=1e-5)
    assert not torch.allclose(velocity_of(ours), velocity_of(TinyModel()), atol=1e-3)
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(
        ModelError, match=r"peft's adapter_config\.json, with its alpha, is missing|no .* with"
    ):
        Policy(ours, LORA, seed=0, adapter=str(tmp_path / named))


@pytest.mark.parametrize("is_reference", [False, True])
def test_the_reference_is_the_base_or_the_adapter(exported: Path, is_reference: bool):
    model = TinyModel()
    policy = Policy(model, LORA, seed=0, adapter=str(exported), adapter_is_reference=is_reference)
    start = velocity_of(model)
    policy.load(perturbed(policy.state(), seed=1))
    moved = velocity_of(model)
    with policy.reference():
        assert torch.equal(velocity_of(model), start if is_reference else velocity_of(TinyModel()))
    assert torch.equal(velocity_of(model), moved)


def rewritten(folder: Path, change: Any) -> str:
    """The exported file with its tensors changed, as another file."""
    tensors = load_file(folder / LORA_FILE)
    change(tensors)
    save_file(tensors, folder / "changed.safetensors")
    return str(folder / "changed.safetensors")


def one_not_finite(tensors: dict[str, torch.Tensor]) -> None:
    tensors[min(tensors)][0, 0] = float("nan")


def another_width(tensors: dict[str, torch.Tensor]) -> None:
    name = next(name for name in sorted(tensors) if ".lora_A." in name)
    tensors[name] = torch.zeros(2, tensors[name].shape[1] + 1)


def a_layer_less(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[min(tensors)]


def a_layer_more(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.proj_in.lora_A.weight"] = torch.zeros(2, 4)


def kohya_names(tensors: dict[str, torch.Tensor]) -> None:
    tensors["lora_unet_blocks_0.lora_down.weight"] = tensors.pop(min(tensors))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (one_not_finite, r"1 of the .* values of .*lora_A.* are not finite"),
        (another_width, r"has shape \[2, 33\], but this model's has \[2, 32\]"),
        (a_layer_less, r"those that adaptation\.targets names: it lacks transformer_blocks\.0"),
        (a_layer_more, r"those that adaptation\.targets names: it has proj_in"),
        (kohya_names, r"'lora_unet_blocks_0\.lora_down\.weight' is not part of a transformer's LoRA"),
        (dict.clear, "it holds no weights"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(exported: Path, change: Any, says: str):
    with pytest.raises(ModelError, match=says) as refused:
        Policy(TinyModel(), LORA, seed=0, adapter=rewritten(exported, change))
    assert "model.adapter = " in str(refused.value) and "\n" not in str(refused.value)


def test_another_rank_and_other_kinds_of_adapters_are_refused(exported: Path, tmp_path: Path):
    with pytest.raises(ModelError, match=r"it has rank 2, and adaptation\.rank is 8; set adaptation\.rank=2"):
        check_lora(str(exported), LORA.model_copy(update={"rank": 8}))
    for name, value in (("use_dora", True), ("alpha_pattern", {"to_q": 1}), ("lora_alpha", None)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes((exported / LORA_FILE).read_bytes())
        (folder / "adapter_config.json").write_text(json.dumps({"lora_alpha": 4, name: value}))
        with pytest.raises(ModelError, match=f"it has {name}="):
            check_lora(str(folder), LORA)


def test_bfloat16_files_are_read(exported: Path):
    def coarse(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].bfloat16()

    policy = Policy(TinyModel(), LORA, seed=0, adapter=rewritten(exported, coarse))
    for name, value in trained().state().items():
        np.testing.assert_allclose(policy.state()[name], value, rtol=2**-8)
