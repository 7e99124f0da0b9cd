"""What training and generating need beside the weights, by hand and against what the families really keep."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.registry import keeps_reference
from gpu_runtime.models.checks.memory_need import GIB, MemoryNeed, WorkNeed, adapter_numbers
from gpu_runtime.models.checks.pipeline_outline import PipelineOutline
from gpu_runtime.models.loading import load_model, outline_model
from tests.pipeline_reference import encoded, family_config
from tests.tiny_pipelines import PIPELINES, Saved
from tests.tiny_run import tiny_config

TOKENS = 6
ROW = 4 * TOKENS * 4
"""Bytes of one number of every token of a batch of four, in float32."""


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = torch.nn.Module()
        self.attn.to_q = torch.nn.Linear(8, 8)
        self.attn.to_v = torch.nn.Linear(8, 4)
        self.feed = torch.nn.Linear(8, 32)


class Transformer(torch.nn.Module):
    """Three blocks of width 8, and a layer that no image token passes."""

    def __init__(self) -> None:
        super().__init__()
        self.text = torch.nn.Linear(8, 8)
        self.transformer_blocks = torch.nn.ModuleList([Block(), Block()])
        self.single_transformer_blocks = torch.nn.ModuleList([Block()])


def need_of(**sections: dict[str, Any]) -> WorkNeed:
    config = tiny_config(**sections)
    return WorkNeed.of(Transformer(), TOKENS, config, keeps_reference(config.algorithm, config.evaluation))


def test_adapters_are_counted_by_the_layers_that_get_one():
    config = tiny_config(adaptation={"mode": "lora", "rank": 2, "targets": ["to_q", "to_v"]})
    numbers = 3 * (2 * (8 + 8) + 2 * (8 + 4))
    assert adapter_numbers(Transformer(), config.adaptation) == numbers
    assert need_of(adaptation={"mode": "lora", "rank": 2, "targets": ["to_q", "to_v"]}).trained_bytes == (
        4 * numbers
    )
    everything = sum(weight.nbytes for weight in Transformer().parameters())
    assert need_of(adaptation={"mode": "full"}).trained_bytes == everything


@pytest.mark.parametrize(
    ("adaptation", "widths"),
    [
        # Four tensors of each block; of adapters, from the block after the first one.
        ({"mode": "full"}, 4 * 24),
        ({"mode": "lora", "targets": ["to_q"]}, 4 * 16),
        ({"mode": "lora", "targets": ["transformer_blocks.1.attn.to_q"]}, 0),
        # What each block was given, and three more of the one that is computed again.
        ({"mode": "full", "gradient_checkpointing": True}, 24 + 3 * 8),
        ({"mode": "lora", "targets": ["to_q"], "gradient_checkpointing": True}, 16 + 3 * 8),
    ],
)
def test_activations_are_rows_by_tokens_by_widths(adaptation: dict[str, Any], widths: int):
    need = need_of(adaptation=adaptation)
    assert need.training_bytes == ROW * widths
    assert need.generating_bytes == ROW * 4 * 8


@pytest.mark.parametrize("checkpointing", [False, True])
def test_samples_that_pass_one_by_one_compute_in_the_memory_of_one(checkpointing: bool):
    config = tiny_config(adaptation={"mode": "full", "gradient_checkpointing": checkpointing})
    need = WorkNeed.of(Transformer(), TOKENS, config, keeps_reference=False, one_by_one=True)
    assert need.generating_bytes == ROW // 4 * 4 * 8
    assert need.training_bytes == (ROW * 24 + ROW // 4 * 3 * 8 if checkpointing else ROW * 4 * 24)


def kept_bytes(model: Any, family: str) -> int:
    """Bytes of what one forward pass keeps for its backward pass, weights left out."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.transformer.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = tensor  # held, so that no other tensor gets its place
        return tensor

    conditioning = encoded(model, [0] * 4, family)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.velocity(torch.randn(4, *model.latent_shape), torch.full((4,), 0.5), conditioning)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.parametrize("family", PIPELINES)
def test_no_family_keeps_less_than_is_counted(saved: Saved, family: str, mode: str):
    once = (
        {"model": {"guidance": 1.0}} if family not in ("flux", "flux-kontext") else {}
    )  # a second pass would keep as much again
    config = family_config(family, saved(family), adaptation={"mode": mode}, **once)
    outline = outline_model(config.model)
    assert isinstance(outline, PipelineOutline)
    counted = outline.work_of(config, keeps_reference=False)
    assert config.sampling.batch_size == 4 and counted.generating_bytes > 0
    model = load_model(config.model)
    policy = Policy(model, config.adaptation, seed=0, keeps_reference=False)
    assert counted.training_bytes <= kept_bytes(model, family)
    trained = sum(weight.nbytes for weight in policy.trained.values())
    assert counted.trained_bytes == trained


def gib(terms: dict[str, float]) -> float:
    return sum(terms.values()) / GIB


def test_what_several_devices_divide_is_divided_and_what_each_holds_is_not():
    whole = MemoryNeed(40 * GIB, GIB, 15 * GIB, work=WorkNeed(40 * GIB, trains_all=True))
    # Alone: weights, gradients and two moments of 40 each, and the other parts.
    assert gib(whole.training(1)) == 4 * 40 + 16
    # Of two, while they generate: all weights, half of them again, half of the moments.
    assert gib(whole.training(2)) == 40 + 20 + 40 + 16
    lora = dataclasses.replace(whole, work=WorkNeed(trained_bytes=2 * GIB, training_bytes=30 * GIB))
    assert gib(lora.training(1)) == 40 + 2 + 4 + 30 + 16
    # While they generate: the weights and half of them, half of the moments; in training: half of all.
    assert gib(lora.training(2)) == max(42 + 21 + 2 + 16, 21 + 2 + 30 + 16)
    assert gib(lora.generating()) == 42 + 16


def test_with_shards_a_device_has_all_weights_and_the_gradients_of_its_shards():
    work = WorkNeed(trained_bytes=2 * GIB, training_bytes=30 * GIB, gradient_shards=8)
    lora = MemoryNeed(40 * GIB, GIB, 15 * GIB, work=work)
    for trainers, shards in ((1, 8), (2, 4), (3, 3), (8, 1)):
        gradients = shards * 2 if shards > 1 else 0  # one shard's are complete after its last activations
        assert gib(lora.training(trainers)) == 40 + 2 + 4 + 30 + 16 + gradients


def test_the_first_of_all_training_steps_finds_no_moments():
    once = MemoryNeed(
        40 * GIB, 0, 0, work=WorkNeed(40 * GIB, trains_all=True, trains_again=False, training_bytes=GIB)
    )
    assert gib(once.training(1)) == 160
    long = dataclasses.replace(once, work=dataclasses.replace(once.work, training_bytes=200 * GIB))
    assert gib(long.training(1)) == 240
    again = dataclasses.replace(once, work=WorkNeed(40 * GIB, trains_all=True, training_bytes=200 * GIB))
    assert gib(again.training(1)) == 40 + 80 + 200


def test_encoders_that_are_fetched_for_new_prompts_need_their_room_then():
    need = MemoryNeed(40 * GIB, GIB, 15 * GIB, offloads_encoders=True)
    assert gib(need.generating()) == 56
    busy = dataclasses.replace(need, work=WorkNeed(generating_bytes=20 * GIB))
    assert gib(busy.generating()) == 61
    assert "text encoders" not in busy.generating()
    lora = dataclasses.replace(need, work=WorkNeed(trained_bytes=2 * GIB))
    assert gib(lora.training(1)) == 56 + 2 + 4, "beside the moments, from the second iteration on"
    assert gib(lora.training(2)) == 56 + 2 + 2 + 21


def test_a_reference_of_full_training_is_a_copy_of_the_weights():
    need = MemoryNeed(40 * GIB, 0, 0, work=WorkNeed(40 * GIB, trains_all=True, keeps_reference=True))
    assert gib(need.training(1)) == 5 * 40


def test_an_objective_that_compares_with_the_reference_keeps_it():
    for objective, mode, kept in (("dpo", "full", True), ("dpo", "lora", False), ("nft", "full", False)):
        need = need_of(algorithm={"objective": objective}, adaptation={"mode": mode, "targets": ["to_q"]})
        assert need.keeps_reference == kept, (objective, mode)
