"""Encoded prompts: kept until the memory for them is used up, those used longest ago given up first."""

from __future__ import annotations

import pytest
import torch

from gpu_runtime.diffusion import sampler
from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.models.protocol import Conditioning
from tests.tiny_model import TinyModel
from tests.tiny_run import PROMPTS, request, tiny_config


def test_prompts_used_longest_ago_make_room(monkeypatch: pytest.MonkeyPatch):
    model, encoded = TinyModel(), list[str]()

    def encode(prompts: list[str]):
        encoded.extend(prompts)
        return TinyModel.encode_prompts(model, prompts)

    monkeypatch.setattr(model, "encode_prompts", encode)
    monkeypatch.setattr(sampler, "_PROMPTS_BYTES", 3 * TinyModel().encode_prompts([""]).nbytes)
    under_test = Sampler(model, tiny_config().sampling)

    def asked(*numbers: int) -> list[str]:
        """Ask for prompts by their numbers; return what was encoded for it."""
        encoded.clear()
        found = under_test.conditioning([request(number, 0) for number in numbers])
        alone = TinyModel().encode_prompts([PROMPTS[number] for number in numbers])
        assert torch.equal(found.embeds_BLE, alone.embeds_BLE) and torch.equal(found.mask_BL, alone.mask_BL)
        return list(encoded)

    first, second, third, fourth = PROMPTS
    assert asked(0, 1, 0) == [first, second]
    assert asked(2) == [third]
    assert asked(0) == []
    assert asked(3) == [fourth]  # in place of the second, as the first was used after it
    assert asked(0, 2, 3) == []
    assert asked(1) == [second]
    assert asked(0, 1, 2, 3) == [first], "all that one batch needs, above the bound"
    assert asked(1) == [] and asked(0) == [first], "the bound holds again after it"


def test_many_prompts_are_on_the_device_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch):
    model, together = TinyModel(), list[list[str]]()

    def encode(prompts: list[str]):
        together.append(prompts)
        return TinyModel.encode_prompts(model, prompts)

    monkeypatch.setattr(model, "encode_prompts", encode)
    monkeypatch.setattr(sampler, "_ENCODED_TOGETHER", 3)
    under_test = Sampler(model, tiny_config().sampling)
    asked = [request(number, 0) for number in range(4)]
    under_test.encode(asked)
    assert together == [list(PROMPTS[:3]), list(PROMPTS[3:])]
    assert torch.equal(
        under_test.conditioning(asked).embeds_BLE, TinyModel().encode_prompts(PROMPTS).embeds_BLE
    )
    assert len(together) == 2, "they are kept"


def test_a_batch_that_takes_a_step_at_a_time_copies_its_prompts_to_the_device_once(
    monkeypatch: pytest.MonkeyPatch,
):
    under_test, copies = Sampler(TinyModel(), tiny_config().sampling), list[int]()
    to = Conditioning.to

    def count(conditioning: Conditioning, device: torch.device | str) -> Conditioning:
        copies.append(len(conditioning.mask_BL))
        return to(conditioning, device)

    wanted = [request(0, 0), request(1, 0)]
    states = under_test.begin(wanted)
    under_test.encode(wanted)
    monkeypatch.setattr(Conditioning, "to", count)
    for _ in range(under_test.total_steps(wanted[0])):
        states = under_test.advance(states, 1)
    assert copies == [4]
    whole = under_test.advance(under_test.begin(wanted[::-1]))
    assert copies == [4, 4], "rows in another order are another batch"
    assert all((one.latents_SC == two.latents_SC).all() for one, two in zip(whole, states[::-1], strict=True))
