"""Transformers whose sequences are shared by 2 and 4 processes compute what one process does."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers.models.attention_dispatch import attention_backend

from gpu_runtime.sequence_parallel.process_group import InstanceGroup
from gpu_runtime.sequence_parallel.ulysses import SharedSequence, shape_of
from storage.errors import ConfigurationError
from tests.sharing_processes import run_in_group
from tests.tiny_transformers import ANY_TEXT, BATCH, FAMILIES, inputs_of, transformer_of

pytestmark = pytest.mark.xdist_group("sharing")

TOLERANCE = 1e-5


def forward(family: str, inputs: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        return transformer_of(family)(**inputs)[0]


def shared_forward(
    group: InstanceGroup, text_tokens: int, batch: int
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Family -> output while shared, and output of the same transformer after it computes alone again."""
    found = {}
    for family in FAMILIES:
        if text_tokens % group.size and family not in ANY_TEXT:
            continue
        transformer, inputs = transformer_of(family), inputs_of(family, text_tokens, batch=batch)
        shared = SharedSequence(transformer, group, shape_of(transformer, 16, text_tokens))
        with torch.no_grad():
            together = transformer(**inputs)[0]
        shared.close()
        with torch.no_grad():
            found[family] = together.numpy(), transformer(**inputs)[0].numpy()
    return found


@pytest.mark.parametrize(("size", "text_tokens"), [(1, 8), (2, 8), (4, 8), (2, 7), (4, 6)])
def test_every_transformer_computes_what_one_process_does(size: int, text_tokens: int):
    answers = run_in_group(size, shared_forward, text_tokens, BATCH)
    assert set(answers[0]) == set(FAMILIES if text_tokens % size == 0 else ANY_TEXT)
    for family in answers[0]:
        alone = forward(family, inputs_of(family, text_tokens)).numpy()
        assert abs(alone).max() > 0.1, "the output says something"
        for rank, answer in enumerate(answers):
            together, afterwards = answer[family]
            assert abs(together - alone).max() <= TOLERANCE, (family, rank)
            assert (afterwards == alone).all(), f"{family} keeps something of the group on rank {rank}"


@pytest.mark.parametrize(("size", "text_tokens"), [(2, 7), (4, 8)])
def test_a_batch_of_sixteen_gives_the_same_bits_whatever_the_degree(size: int, text_tokens: int):
    """Attention gets the numbers it gets alone. Linear layers on a CPU round rows alike from 16 rows on."""
    answers = run_in_group(size, shared_forward, text_tokens, 16)
    for family in answers[0]:
        alone = forward(family, inputs_of(family, text_tokens, batch=16)).numpy()
        for rank, answer in enumerate(answers):
            assert (answer[family][0] == alone).all(), (family, rank)


def exchanges(group: InstanceGroup) -> list[int]:
    """Calls of a collective in a forward pass of Qwen-Image, with text that divides and with padding."""
    counts = []
    for text_tokens in (8, 7):
        transformer, inputs = transformer_of("qwen"), inputs_of("qwen", text_tokens)
        shared = SharedSequence(transformer, group, shape_of(transformer, 16, text_tokens))
        with torch.profiler.profile() as profile, torch.no_grad():
            transformer(**inputs)
        shared.close()
        events = {event.key: event.count for event in profile.key_averages()}
        counts.append(events["c10d::alltoall_base_"])
    return counts


def test_attention_costs_two_exchanges():
    qwen: Any = transformer_of("qwen")
    layers = len(qwen.transformer_blocks)
    for counts in run_in_group(2, exchanges):
        assert counts == [2 * layers, 2 * layers]


def without_mask(group: InstanceGroup) -> Any:
    transformer, inputs = transformer_of("qwen"), inputs_of("qwen", 7)
    del inputs["encoder_hidden_states_mask"]
    shared = SharedSequence(transformer, group, shape_of(transformer, 16, 7))
    with torch.no_grad():
        output = transformer(**inputs)[0].numpy()
    shared.close()
    return output


def test_text_without_a_mask_is_padded_behind_one():
    inputs = inputs_of("qwen", 7)
    del inputs["encoder_hidden_states_mask"]
    alone = forward("qwen", inputs).numpy()
    for together in run_in_group(2, without_mask):
        assert abs(together - alone).max() <= TOLERANCE


def recorded_collectives(group: InstanceGroup) -> int:
    for _ in range(5):
        group.any_true(True)
    native: Any = torch._C  # its stub lacks the module
    dumped = native._distributed_c10d._dump_fr_trace(
        includeCollectives=True, includeStackTraces=False, onlyActive=False
    )
    return len(pickle.loads(dumped)["entries"])


def test_members_keep_no_record_of_their_collectives():
    assert run_in_group(2, recorded_collectives) == [0, 0]


def refusals(group: InstanceGroup) -> list[str]:
    said = []
    for family, image_tokens, text_tokens, heads in (
        ("flux", 16, 7, 4),
        ("qwen", 15, 8, 4),
        ("sd3", 16, 8, 3),
    ):
        transformer = transformer_of(family, heads)
        before = [type(module).forward for module in transformer.modules()]
        try:
            SharedSequence(transformer, group, shape_of(transformer, image_tokens, text_tokens))
        except ConfigurationError as error:
            said.append(str(error))
        assert [type(module).forward for module in transformer.modules()] == before
    return said


def test_what_does_not_divide_is_refused_before_anything_is_computed():
    for said in run_in_group(2, refusals):
        assert "7 text tokens" in said[0] and "degree 2" in said[0]
        assert "15 image tokens" in said[1]
        assert "3 attention heads" in said[2]


def test_an_unknown_transformer_is_refused():
    with pytest.raises(ConfigurationError, match="does not know Linear"):
        shape_of(torch.nn.Linear(2, 2), 16, 8)


def test_a_kernel_that_cannot_share_is_refused():
    transformer: Any = transformer_of("qwen")
    group: Any = SimpleNamespace(size=2, rank=0)
    refused = pytest.raises(ConfigurationError, match="attention backend _native_math cannot be shared")
    with attention_backend("_native_math"), refused:
        SharedSequence(transformer, group, shape_of(transformer, 16, 8))
