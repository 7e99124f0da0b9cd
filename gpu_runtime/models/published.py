"""Sizes of published models, and the operations and bytes of a pass: without weights and without torch.

A multiply-add counts as two operations. Norms, activations and RoPE are not matrix products: they are counted
as bytes that memory moves. `tests/unit/tasks/test_counted_profile.py` compares both operations and weights
with torch's counts for the real classes.

Sources: `transformer/config.json` and the part folders of each model's repository on the hub; the VAEs'
operations by torch's counter at 512x512.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_runtime.models.family_options import source_count
from storage.config.model import ModelConfig

_TIME_WIDTH = 256
"""Sines and cosines of the noise level."""

_MOVED = 24
"""Tensors of a token's width that a block reads or writes outside its matrix products: two norms with
modulation, RoPE and norms of queries and keys, two gated sums, the activation of four widths."""

_BFLOAT16 = 2


@dataclass(frozen=True)
class PassOperations:
    """Operations of one sample.

    Attributes:
        forward: a denoising step.
        adapters: operations that LoRA adds to it.
        backward: from the loss to the adapters: through every layer's input, but to no frozen weight.
    """

    forward: float
    adapters: float
    backward: float


@dataclass(frozen=True)
class Architecture:
    """The sizes of a transformer. Attention has 4 weights per squared width for each stream of a block.

    Attributes:
        width: hidden width of a token.
        double: blocks in which image and text have separate weights.
        single: blocks in which they share weights.
        image_only, text_only: blocks that only one of them passes through.
        dual: blocks with a second attention, over the image alone.
        cross: blocks that the image passes through alone, with cross-attention to the text.
        linear_head: head width if the attention of these is linear; 0 if it compares all tokens.
        channels: channels of an image token at the transformer's input and output.
        text_width: width of the encoder's text tokens, plus the width inside their projection.
        feed_forward: weights of a stream's feed-forward, per squared width.
        modulation: weights of the modulations, per squared width, if blocks share them or have small ones;
            None if each block computes its own at full width.
        ends_in_image: True if the last block computes no text for a next one.
    """

    width: int
    double: int = 0
    single: int = 0
    image_only: int = 0
    text_only: int = 0
    dual: int = 0
    cross: int = 0
    linear_head: int = 0
    channels: int = 64
    text_width: int = 4096
    feed_forward: float = 8
    modulation: int | None = None
    ends_in_image: bool = False

    @property
    def blocks(self) -> int:
        """Blocks that an image token passes through."""
        return self.double + self.single + self.image_only + self.cross

    @property
    def numbers(self) -> float:
        """Weights, except biases, norms and the noise level's embedding."""
        squared = self.width**2
        streams = 2 * self.double + self.single + self.image_only + self.text_only
        edges = self.width * (2 * self.channels + self.text_width)
        crossing = self.cross * (8 + self.feed_forward)
        return squared * (self._of_stream * streams + 4 * self.dual + crossing + self._modulation) + edges

    @property
    def _modulation(self) -> int:
        if self.modulation is not None:
            return self.modulation
        return 12 * self.double + 3 * (self.single + self.dual)

    @property
    def _of_stream(self) -> float:
        return 4 + self.feed_forward

    def _crossing_adapters(self, feed_forward: bool) -> float:
        """Return an image token's inputs and outputs of layers with adapters in `cross` blocks, in widths."""
        # Where attention is linear, the feed-forward consists of convolutions, which have none.
        return self.cross * (12 + (2 + self.feed_forward) * (feed_forward and not self.linear_head))

    def adapters(self, rank: int, feed_forward: bool) -> float:
        """Return the weights of LoRA on all linear layers of attention, and of the feed-forward if asked."""
        streams = 2 * self.double + self.single + self.image_only + self.text_only
        crossing = self._crossing_adapters(feed_forward) + 4 * self.cross
        return rank * self.width * ((8 + 10 * feed_forward) * streams + 8 * self.dual + crossing)

    def operations(
        self,
        image_tokens: int,
        text_tokens: int,
        rank: int = 0,
        feed_forward: bool = True,
    ) -> PassOperations:
        """Return the operations of one sample's passes.

        Args:
            image_tokens: latent tokens S.
            text_tokens: text tokens L.
            rank: rank of adapters on all linear layers of attention; 0 for none.
            feed_forward: True if the feed-forward has adapters too.
        """
        squared, tokens, streams = self.width**2, image_tokens + text_tokens, self.double + self.single
        passed = streams * tokens + self.image_only * image_tokens + self.text_only * text_tokens
        # Queries, keys, values and output are 4 of width x width; then the feed-forward.
        linear = 2 * squared * (self._of_stream * passed + 4 * self.dual * image_tokens)
        linear += 2 * squared * self.cross * ((6 + self.feed_forward) * image_tokens + 2 * text_tokens)
        if self.ends_in_image:
            linear -= 2 * (1 + self.feed_forward) * squared * text_tokens
        pairs = streams * tokens**2 + (self.dual + self.image_only) * image_tokens**2
        compared = self.linear_head + 1 if self.linear_head else image_tokens
        pairs += self.cross * image_tokens * (compared + text_tokens)
        attention = 4 * self.width * (pairs + self.text_only * text_tokens**2)
        modulation = 2 * squared * (self._modulation + 3) + 2 * _TIME_WIDTH * self.width
        output = 2 * image_tokens * self.channels * self.width
        edges = 2 * output + 2 * text_tokens * self.text_width * self.width
        forward = linear + attention + modulation + edges
        # An adapter of a linear layer: in x rank and rank x out.
        adapted = (8 + 10 * feed_forward) * passed + 8 * self.dual * image_tokens
        adapted += self._crossing_adapters(feed_forward) * image_tokens + 4 * self.cross * text_tokens
        adapters = 2 * rank * self.width * adapted
        # A matrix product costs once to its input, and once more to its weight if that is trained. Nothing
        # trained precedes the modulations and the edges; the output's input counts.
        backward = linear + 2 * attention + output + 2 * adapters
        return PassOperations(float(forward), float(adapters), float(backward))

    def moved_bytes(self, image_tokens: int, text_tokens: int, samples: int) -> float:
        """Return the bytes that a batch's pass in bfloat16 moves.

        These are the weights, once, and the tensors between the matrix products.

        Args:
            image_tokens: latent tokens S of a sample.
            text_tokens: text tokens L of a sample.
        """
        tokens = samples * (image_tokens + text_tokens)
        return _BFLOAT16 * (self.numbers + _MOVED * tokens * self.width * self.blocks)


@dataclass(frozen=True)
class PublishedModel:
    """A published model.

    Attributes:
        name: name on the hub.
        transformer_class: name of the transformer's class in diffusers.
        transformer: arguments of that class, as in its config.json.
        text_length: default text tokens of a prompt; only the real tokens if the family cuts off padding.
        more_text: text tokens in addition to them.
        cuts_padding: True if only a prompt's real tokens pass through the transformer.
        takes_negative: True if guidance takes a second pass.
        side: side of an image token in pixels.
        frames: frames per latent frame of a clip; 0 for images.
        experts: transformers of the same size, one of which computes a step.
        seen: text tokens that the encoder makes of each source image; 0 in families that do not edit.
        vae: weights of the VAE.
        decoding: operations per decoded pixel.
        encoders: weights of all text encoders.
    """

    name: str
    architecture: Architecture
    transformer_class: str
    transformer: Mapping[str, Any]
    text_length: int
    vae: float
    decoding: float
    encoders: float
    more_text: int = 0
    cuts_padding: bool = False
    takes_negative: bool = True
    side: int = 16
    frames: int = 0
    experts: int = 1
    seen: int = 0

    def passes(self, settings: ModelConfig) -> int:
        """Return the passes of a denoising step: guidance adds one if it takes a negative prompt."""
        return 2 if self.takes_negative and settings.guidance > 1 else 1

    def tokens(self, settings: ModelConfig) -> tuple[int, int]:
        """Return the image and text tokens of a sample."""
        height, width = settings.size
        image = height // self.side * (width // self.side)
        image *= (settings.clip_frames - 1) // self.frames + 1 if self.frames else 1
        text = self.text_length if self.cuts_padding else settings.text_length or self.text_length
        sources = source_count(settings) if self.seen else 0
        return (1 + sources) * image, text + self.more_text + sources * self.seen

    def pixels(self, settings: ModelConfig) -> int:
        """Return a sample's decoded pixels."""
        return math.prod(settings.size) * (settings.clip_frames if self.frames else 1)


_CLIP, _BIG_CLIP, _T5, _UMT5, _GEMMA = 0.124e9, 0.695e9, 4.762e9, 5.681e9, 2.614e9
"""Weights of CLIP ViT-L/14's text encoder, of OpenCLIP ViT-bigG/14's, of T5 v1.1 XXL's and of UMT5 XXL's
encoder, and of Gemma 2 2B."""

_KL_VAE, _KL_DECODING = 83.8e6, 9.6e6
_STABLE_DIFFUSION_3: Mapping[str, Any] = {"joint_attention_dim": 4096, "qk_norm": "rms_norm"}


def _stable_diffusion_3(name: str, layers: int, width: int, dual: int, places: int) -> PublishedModel:
    sizes = {
        "num_layers": layers, "attention_head_dim": 64, "num_attention_heads": width // 64,
        "caption_projection_dim": width, "pos_embed_max_size": places,
        "dual_attention_layers": tuple(range(dual)),
    }  # fmt: skip
    return PublishedModel(
        f"stabilityai/stable-diffusion-3.5-{name}",
        Architecture(width, double=layers, dual=dual, ends_in_image=True),
        "SD3Transformer2DModel", {**_STABLE_DIFFUSION_3, **sizes},
        text_length=256, more_text=77, vae=_KL_VAE, decoding=_KL_DECODING, encoders=_CLIP + _BIG_CLIP + _T5,
    )  # fmt: skip


def _flux2_klein(size: str, width: int, double: int, single: int, encoder: float) -> PublishedModel:
    text_width = 3 * (4096 if size == "9B" else 2560)
    return PublishedModel(
        f"black-forest-labs/FLUX.2-klein-{size}",
        Architecture(
            width, double, single, channels=128, text_width=text_width, feed_forward=9, modulation=15
        ),
        "Flux2Transformer2DModel",
        {
            "num_layers": double, "num_single_layers": single, "num_attention_heads": width // 128,
            "joint_attention_dim": text_width, "guidance_embeds": False,
        },
        text_length=512, vae=84.0e6, decoding=_KL_DECODING, encoders=encoder,
    )  # fmt: skip


def _qwen_image(name: str, seen: int = 0) -> PublishedModel:
    return PublishedModel(
        name,
        Architecture(3072, double=60, text_width=3584),
        "QwenImageTransformer2DModel",
        {
            "num_layers": 60, "num_attention_heads": 24, "attention_head_dim": 128,
            "joint_attention_dim": 3584, "in_channels": 64, "out_channels": 16, "patch_size": 2,
            "axes_dims_rope": (16, 56, 56),
        },
        text_length=512, vae=126.9e6, decoding=10.8e6, encoders=8.29e9, seen=seen,
    )  # fmt: skip


def _wan(
    name: str, width: int, layers: int, feed_forward: float, channels: int, side: int, vae: float,
    decoding: float, experts: int,
) -> PublishedModel:  # fmt: skip
    return PublishedModel(
        f"Wan-AI/Wan2.2-{name}-Diffusers",
        Architecture(width, cross=layers, channels=4 * channels, text_width=4096 + width, modulation=4,
                     feed_forward=feed_forward),
        "WanTransformer3DModel",
        {
            "num_attention_heads": width // 128, "in_channels": channels, "out_channels": channels,
            "ffn_dim": round(feed_forward / 2 * width), "num_layers": layers,
        },
        text_length=512, side=side, frames=4, vae=vae, decoding=decoding, encoders=_UMT5, experts=experts,
    )  # fmt: skip


_MODELS: dict[str, tuple[PublishedModel, ...]] = {
    "sd3.5": (
        _stable_diffusion_3("medium", layers=24, width=1536, dual=13, places=384),
        _stable_diffusion_3("large", layers=38, width=2432, dual=0, places=192),
    ),
    "flux": (
        PublishedModel(
            "black-forest-labs/FLUX.1-dev",
            Architecture(3072, double=19, single=38),
            "FluxTransformer2DModel", {"guidance_embeds": True},
            text_length=512, takes_negative=False, vae=_KL_VAE, decoding=_KL_DECODING, encoders=_CLIP + _T5,
        ),
    ),
    "flux2-klein": (
        _flux2_klein("4B", width=3072, double=5, single=20, encoder=4.02e9),
        _flux2_klein("9B", width=4096, double=8, single=24, encoder=8.19e9),
    ),
    "sana": (
        PublishedModel(
            "Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers",
            # 7.5 and a depthwise convolution of 3x3 over five widths.
            Architecture(2240, cross=20, linear_head=32, channels=32, text_width=2304 + 2240, modulation=4,
                         feed_forward=7.5 + 45 / 2240),
            "SanaTransformer2DModel", {},
            text_length=300, side=32, vae=312.3e6, decoding=8.0e6, encoders=_GEMMA,
        ),
    ),
    "z-image": (
        PublishedModel(
            "Tongyi-MAI/Z-Image-Turbo",
            Architecture(3840, single=30, image_only=2, text_only=2, text_width=2560, modulation=0),
            "ZImageTransformer2DModel", {},
            # A prompt of some 70 words with its template; the transformer pads it to a multiple of 32.
            text_length=96, cuts_padding=True, vae=_KL_VAE, decoding=_KL_DECODING, encoders=4.02e9,
        ),
    ),
    "qwen-image-2.1": (
        PublishedModel(
            "Qwen/Qwen-Image-2.1",
            Architecture(4096, single=32, text_width=2 * 4096, modulation=4, feed_forward=9),
            "QwenImage21Transformer2DModel", {},
            # As for Z-Image: only a prompt's real tokens pass through the transformer.
            text_length=96, cuts_padding=True, vae=337.7e6, decoding=16.2e6, encoders=8.77e9,
        ),
    ),
    "hunyuan-video-1.5": (
        PublishedModel(
            "hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-480p_t2v",
            Architecture(2048, double=54, text_only=2, channels=48, text_width=3584),
            "HunyuanVideo15Transformer3DModel", {},
            # As for Z-Image; a text in quotes adds a token for each byte.
            text_length=96, cuts_padding=True, frames=4, vae=1260.6e6, decoding=25.7e6, encoders=7.29e9,
        ),
    ),
    "wan2.2": (
        _wan("TI2V-5B", 3072, 30, 28 / 3, channels=48, side=32, vae=704.7e6, decoding=18.9e6, experts=1),
        _wan("T2V-A14B", 5120, 40, 5.4, channels=16, side=16, vae=126.9e6, decoding=8.7e6, experts=2),
    ),
    "qwen-image": (_qwen_image("Qwen/Qwen-Image"),),
    # The encoder gets images of 384x384 pixels, and a token stands for 28x28.
    "qwen-image-edit-plus": (_qwen_image("Qwen/Qwen-Image-Edit-2511", seen=(384 // 28) ** 2),),
}  # fmt: skip


def published_model(settings: ModelConfig) -> PublishedModel | None:
    """Return the published model that the settings name; None for a family that is not counted.

    Among several in a family, it is the one whose last word is in the path, such as `large` in
    /models/sd3.5-large, or else the first.
    """
    models = _MODELS.get(settings.family, ())
    words = [model.name.removesuffix("-Diffusers").rpartition("-")[2].lower() for model in models]
    named = [model for model, word in zip(models, words, strict=True) if word in settings.path.lower()]
    return next(iter(named or models), None)


def counted_families() -> tuple[str, ...]:
    """Return the families with a published model."""
    return tuple(_MODELS)
