"""Reward for pictures that people prefer: ImageReward (arXiv 2304.05977), a BLIP with a head.

transformers has BLIP's two encoders, but not ImageReward: its file is read by its authors' names, and the
sizes of the encoders are those of the file's tensors.

Shape suffixes: B pictures, S tokens, D width.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from transformers import (
    BertTokenizer,
    BlipTextConfig,
    BlipTextModel,
    BlipVisionConfig,
    BlipVisionModel,
    CLIPImageProcessorPil,
)

from gpu_runtime.models.files.hub_folder import find_folder
from gpu_runtime.rewards.judge_models.weight_files import fill, linear_head, read_weights
from gpu_runtime.rewards.protocol import Score
from storage.errors import ModelError
from storage.prompts.files import PromptRecord

MEAN, DEVIATION = 0.16717362830052426, 1.0333394966054072
"""Of the head's numbers over the data that ImageReward was trained on."""

_TOKENS = 35
_ADDED_WORDS = 2
"""BLIP's own, which begin a text that it writes or compares; ImageReward's question has none of them."""

_HEAD_WIDTH = 64
"""Of an attention head, in both encoders."""

_SETTING, _TOKENIZER = "reward.options.weights", "reward.options.tokenizer"
_VISION, _TEXT, _LAYERS = "blip.visual_encoder.", "blip.text_encoder.", "mlp.layers."
_RENAMED = (
    (r"^cls_token$", "embeddings.class_embedding"),
    (r"^pos_embed$", "embeddings.position_embedding"),
    (r"^patch_embed\.proj\.", "embeddings.patch_embedding."),
    (r"^norm\.", "post_layernorm."),
    (r"^blocks\.(\d+)\.norm([12])\.", r"encoder.layers.\1.layer_norm\2."),
    (r"^blocks\.(\d+)\.attn\.proj\.", r"encoder.layers.\1.self_attn.projection."),
    (r"^blocks\.(\d+)\.attn\.", r"encoder.layers.\1.self_attn."),
    (r"^blocks\.(\d+)\.mlp\.", r"encoder.layers.\1.mlp."),
)
"""The picture's encoder: names of BLIP's authors, and those of transformers; the text's are the same."""


class ImageRewardScorer:
    """The probability that a picture is preferred to an average one, by ImageReward's number: in [0, 1].

    ImageReward is trained by pairs: sigmoid(a - b) is the probability that people prefer a to b.

    Args:
        vision: the picture's encoder.
        text: the text's encoder, which looks at the encoded picture.
        head: five linear layers.
        tokenizer: BERT's.
    """

    name = "image-reward"

    def __init__(
        self, vision: BlipVisionModel, text: BlipTextModel, head: torch.nn.Sequential, tokenizer: Any
    ) -> None:
        self._vision: Any = vision.eval()
        self._text: Any = text.eval()
        self._head = head
        self._tokenizer = tokenizer
        side = int(self._vision.config.image_size)
        self._processor: Any = CLIPImageProcessorPil(
            size={"shortest_edge": side}, crop_size={"height": side, "width": side}
        )

    @classmethod
    def load(cls, weights: str, tokenizer: str) -> Self:
        """Load ImageReward's file, and a tokenizer by its folder or name in the hub's cache.

        Raises:
            ModelError: files are missing, or they are of another model.
        """
        found = read_weights(_SETTING, weights)
        vision = _of_picture(_under(found, _VISION))
        text = _of_text(_under(found, _TEXT))
        head = linear_head(found, _SETTING, text.config.hidden_size, _LAYERS)
        folder = find_folder(_TOKENIZER, tokenizer)
        try:
            words: Any = BertTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{_TOKENIZER}: {folder} has no tokenizer that transformers can load: {error}"
            ) from error
        # Without its files transformers gives a tokenizer of five words. The weights know two words more.
        if not 0 <= text.config.vocab_size - len(words) <= _ADDED_WORDS:
            raise ModelError(
                f"{_TOKENIZER}: {folder} has {len(words):,} tokens, and the weights know "
                f"{text.config.vocab_size:,}; name the folder of google-bert/bert-base-uncased"
            )
        return cls(vision, text, head, words)

    def move(self, device: str) -> None:
        """Judge on that device from now on."""
        for model in (self._vision, self._text, self._head):
            model.to(device)

    def check(self, prompt: PromptRecord) -> None:
        """Every prompt will do; what is too long is cut off."""

    @torch.inference_mode()
    def number(self, image_HWC: np.ndarray, text: str) -> float:
        """ImageReward's own number for a uint8 RGB image of shape (H, W, 3): mean 0, deviation 1."""
        device = self._vision.device
        pixels = self._processor(images=[image_HWC], return_tensors="pt")["pixel_values"].to(device)
        picture_BSD = self._vision(pixel_values=pixels).last_hidden_state
        words = self._tokenizer(
            text, padding="max_length", truncation=True, max_length=_TOKENS, return_tensors="pt"
        ).to(device)
        seen_BSD = self._text(
            input_ids=words["input_ids"],
            attention_mask=words["attention_mask"],
            encoder_hidden_states=picture_BSD,
            encoder_attention_mask=torch.ones(picture_BSD.shape[:2], dtype=torch.long, device=device),
        ).last_hidden_state
        return (float(self._head(seen_BSD[:, 0])[0, 0]) - MEAN) / DEVIATION

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3) against its prompt; none is ever exact."""
        number = self.number(image_HWC, prompt.text)
        return Score(0.5 + 0.5 * math.tanh(number / 2), False, f"score {number:.3f}")


def _of_picture(weights: Mapping[str, torch.Tensor]) -> BlipVisionModel:
    """The picture's encoder, of the size that its tensors have."""
    patch, places = _shape(weights, "patch_embed.proj.weight"), _shape(weights, "pos_embed")
    inner = _shape(weights, "blocks.0.mlp.fc1.weight")
    width = patch[0]
    config: Any = BlipVisionConfig
    model = BlipVisionModel(
        config(
            hidden_size=width, intermediate_size=inner[0], num_hidden_layers=_count(weights, "blocks."),
            num_attention_heads=max(1, width // _HEAD_WIDTH), patch_size=patch[-1],
            image_size=math.isqrt(places[1] - 1) * patch[-1], layer_norm_eps=1e-6,
        )
    )  # fmt: skip
    fill(model, {_renamed(name): value for name, value in weights.items()}, _SETTING)
    return model


def _of_text(weights: Mapping[str, torch.Tensor]) -> BlipTextModel:
    """The text's encoder, of the size that its tensors have."""
    words, width = _shape(weights, "embeddings.word_embeddings.weight")
    config: Any = BlipTextConfig
    model = BlipTextModel(
        config(
            vocab_size=words, hidden_size=width,
            encoder_hidden_size=_shape(weights, "encoder.layer.0.crossattention.self.key.weight")[1],
            intermediate_size=_shape(weights, "encoder.layer.0.intermediate.dense.weight")[0],
            num_hidden_layers=_count(weights, "encoder.layer."),
            num_attention_heads=max(1, width // _HEAD_WIDTH),
            max_position_embeddings=_shape(weights, "embeddings.position_embeddings.weight")[0],
        ),
        add_pooling_layer=False,
    )  # fmt: skip
    fill(model, weights, _SETTING)
    return model


def _under(weights: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _renamed(name: str) -> str:
    for pattern, replacement in _RENAMED:
        name, count = re.subn(pattern, replacement, name)
        if count:
            return name
    return name


def _shape(weights: Mapping[str, torch.Tensor], name: str) -> tuple[int, ...]:
    if name not in weights:
        raise ModelError(
            f"{_SETTING}: the file has no {name} of ImageReward's encoders; name the file ImageReward.pt"
        )
    return tuple(weights[name].shape)


def _count(weights: Mapping[str, torch.Tensor], prefix: str) -> int:
    places = {name.removeprefix(prefix).split(".")[0] for name in weights if name.startswith(prefix)}
    return len(places)
