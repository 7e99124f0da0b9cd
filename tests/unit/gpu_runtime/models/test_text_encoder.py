from __future__ import annotations

import pytest
import torch

from gpu_runtime.models.embedded import text_encoder
from gpu_runtime.models.embedded.text_encoder import tokenize
from gpu_runtime.models.protocol import Conditioning
from storage.errors import ConfigurationError

PINNED = [0.5761107802391052, -1.3071565628051758, 1.7740646600723267]


def encode(prompts: list[str], length: int, width: int) -> Conditioning:
    embeds_BLE, mask_BL = text_encoder.encode(prompts, length, width)
    return Conditioning(torch.from_numpy(embeds_BLE), torch.from_numpy(mask_BL))


def test_quoted_text_is_spelled() -> None:
    assert tokenize('A red sign, that says "K7a"') == [
        "word:a", "word:red", "word:sign", "word:that", "word:says", "char:0:K", "char:1:7", "char:2:a",
    ]  # fmt: skip


def test_a_prompt_has_the_same_bits_in_any_list() -> None:
    alone = encode(["a red sign"], 8, 16)
    among = encode(["one two three four five six", "a red sign", "a"], 8, 16)
    assert torch.equal(alone.embeds_BLE[0], among.embeds_BLE[1])
    assert torch.equal(alone.mask_BL[0], among.mask_BL[1])
    assert among.mask_BL.sum(1).tolist() == [6, 3, 1]
    assert among.embeds_BLE[~among.mask_BL].abs().max().item() == 0.0


def test_the_vectors_never_change() -> None:
    # The committed weights were trained on these numbers.
    first = encode(["circle"], 4, 128).embeds_BLE[0, 0]
    assert first[:3].tolist() == pytest.approx(PINNED, abs=1e-6)


def test_vectors_of_different_tokens_are_far_apart() -> None:
    vectors = encode(['red green blue "AB"'], 8, 128).embeds_BLE[0, :5]
    cosine = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    assert (cosine - torch.eye(5)).abs().max().item() < 0.35


def test_a_prompt_that_is_too_long_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has 5 tokens; this model takes 1 to 4"):
        encode(["a", "a b c d e"], 4, 16)
    with pytest.raises(ConfigurationError, match="has 0 tokens"):
        encode([" "], 4, 16)
