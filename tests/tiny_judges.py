"""Judges of the real classes with tiny random weights, saved to disk in the hub's own layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPTokenizer,
    DeepseekOcr2Config,
    DeepseekOcr2ForConditionalGeneration,
    DeepseekOcr2ImageProcessorPil,
    Mask2FormerConfig,
    Mask2FormerForUniversalSegmentation,
    Mask2FormerImageProcessorPil,
    PreTrainedTokenizerFast,
    SwinConfig,
)

from gpu_runtime.prompt_sets.geneval import CLASSES

COCO_NAMES = {"computer mouse": "mouse", "tv remote": "remote", "computer keyboard": "keyboard"}


def save_detector(folder: Path, labels: tuple[str, ...] = CLASSES, seed: int = 0) -> Path:
    """A Mask2Former of ten queries; labels as COCO calls them."""
    torch.manual_seed(seed)
    swin: Any = SwinConfig  # its parameters are those of several classes, which pyright does not see
    backbone = swin(
        image_size=64, patch_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = Mask2FormerConfig(
        backbone_config=backbone, feature_size=32, mask_feature_size=32, hidden_dim=32,
        encoder_feedforward_dim=32, encoder_layers=1, decoder_layers=2, num_attention_heads=2,
        dim_feedforward=32, num_queries=10,
        id2label={index: COCO_NAMES.get(name, name) for index, name in enumerate(labels)},
    )  # fmt: skip
    model = Mask2FormerForUniversalSegmentation(config)
    model.save_pretrained(folder)
    Mask2FormerImageProcessorPil(
        size={"shortest_edge": 64, "longest_edge": 96}, size_divisor=32
    ).save_pretrained(folder)
    return folder


def save_clip(folder: Path, seed: int = 0) -> Path:
    """A CLIP of pictures of 32x32 and of texts letter by letter."""
    torch.manual_seed(seed)
    letters = sorted(ByteLevel.alphabet())
    words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(
        vocab={word: index for index, word in enumerate(words)}, merges=[], model_max_length=32
    )
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = tower | {
        "vocab_size": len(words), "max_position_embeddings": 32, "bos_token_id": len(words) - 2,
        "eos_token_id": len(words) - 1, "pad_token_id": len(words) - 1,
    }  # fmt: skip
    vision = tower | {"image_size": 32, "patch_size": 8}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    with torch.no_grad():  # the usual start is so small that all texts are alike
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(
        folder
    )
    return folder


def save_reader(folder: Path, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Path:
    """A DeepSeek-OCR-2 that reads nonsense from pictures of 64x64."""
    torch.manual_seed(seed)
    words = ["<unk>", "<s>", "</s>", "<image>", *sorted(ByteLevel.alphabet())]
    inner = Tokenizer(BPE({word: index for index, word in enumerate(words)}, [], unk_token="<unk>"))
    inner.pre_tokenizer, inner.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="</s>", unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
    )  # fmt: skip
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = {
        "sam_config": small | {
            "output_channels": 16, "image_size": 64, "window_size": 2, "global_attn_indexes": [1],
            "downsample_channels": [24, 32],
        },
        "encoder_config": small | {"vocab_size": 8, "intermediate_size": 32, "num_key_value_heads": 2},
    }  # fmt: skip
    text = small | {
        "vocab_size": len(words), "intermediate_size": 32, "moe_intermediate_size": 16, "n_routed_experts": 4,
        "n_shared_experts": 1, "num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse"],
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
    }  # fmt: skip
    reader: Any = DeepseekOcr2Config
    config = reader(
        vision_config=vision,
        text_config=text,
        image_token_id=3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    model: Any = DeepseekOcr2ForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    model.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    DeepseekOcr2ImageProcessorPil(size={"height": 1024, "width": 1024}, tile_size=768).save_pretrained(folder)
    return folder
