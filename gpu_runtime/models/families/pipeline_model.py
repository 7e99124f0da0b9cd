"""The common base of the families whose parts come from a diffusers pipeline.

A family is a subclass: it names its parts, encodes a prompt and calls its transformer; what most families
share is here. `gpu_runtime/models/checks/pipeline_outline.py` describes a model without loading it.

Shape suffixes: B samples, L text tokens, E width, S image tokens, C latent channels, H W pixels, T h w latent
frames, rows and columns.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from gpu_runtime.models.families.compiled_blocks import compile_blocks
from gpu_runtime.models.files.finite_numbers import checked_pixels
from gpu_runtime.models.files.pipeline_folder import PartKind, PipelineFolder
from gpu_runtime.models.files.pipeline_parts import Parts, load_scheduler, load_tokenizers
from gpu_runtime.models.files.whole_weights import load_weights
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig
from storage.errors import ConfigurationError, ModelError

_BELOW_ONE = 1 - 1e-6
"""UniPC's first noise level, which stands for 1."""

_ROUNDING = 1e-4
"""More than a timestep loses when its noise level is rounded to float32."""


class PipelineModel(ABC):
    """A `gpu_runtime.models.protocol.DiffusionModel` made of a pipeline's parts.

    Args:
        parts: loaded parts, on the CPU.
    """

    PIPELINE: ClassVar[Any]
    """Pipeline class of diffusers."""

    ADAPTERS: ClassVar[Any] = None
    """Pipeline class whose format adapters are exported in, if `PIPELINE` loads none."""

    TRANSFORMER: ClassVar[Any]
    VAE: ClassVar[Any]

    ENCODERS: ClassVar[Mapping[str, Any]]
    """Folders of the text encoders, and their classes."""

    TOKENIZERS: ClassVar[tuple[str, ...]] = ("tokenizer",)
    """Folders of the tokenizers; `text_length` limits the tokens of the last one."""

    TEXT_LENGTH: ClassVar[int]
    """Default text tokens L, as in the pipeline itself."""

    MASKED: ClassVar[bool] = False
    """True if attention to text has a mask, which some kernels do not support."""

    CUTS_PADDING: ClassVar[bool] = False
    """True if the transformer gets text without its padding, so that its length varies."""

    SCHEDULER: ClassVar[Any] = FlowMatchEulerDiscreteScheduler
    """Scheduler class that its models come with; only the schedule is used."""

    TAKES_NEGATIVE: ClassVar[bool] = True
    """True if guidance is classifier-free, with a second pass for the negative prompt."""

    THINKS: ClassVar[bool | None] = None
    """`enable_thinking` of the tokenizer's chat template, if the text encoder gets prompts as chat messages;
    None if it does not."""

    DROPPED: ClassVar[int] = 0
    """Leading tokens, the same for every prompt, that the transformer does not get."""

    PATCH: ClassVar[int] = 2
    """Side of the transformer's token in latent pixels."""

    PACKED: ClassVar[bool] = False
    """True if a latent token is a whole patch, False if it is a latent pixel that the transformer packs."""

    FRAME_SCALE: ClassVar[str] = ""
    """Key in the VAE's configuration of the frames per latent frame; empty for image families."""

    def __init__(self, parts: Parts, settings: ModelConfig, device: torch.device) -> None:
        self.settings = settings
        self.device = device
        # That of most weights: some families keep norms in float32.
        self.dtype: torch.dtype = parts.transformer.dtype
        self.transformer: torch.nn.Module = parts.transformer.to(device)
        self.vae = parts.vae.to(device)
        self._scheduler = parts.scheduler
        self._encoders, self._tokenizers = parts.encoders, parts.tokenizers
        self.text_length = settings.text_length or self.TEXT_LENGTH
        self.latent_shape = math.prod(self._box), self._channels()
        if settings.encoders == "resident":
            for encoder in self._encoders.values():
                encoder.to(device)
        self._guides = self.TAKES_NEGATIVE and settings.guidance > 1
        self._negative = self._encoded_negative()

    @classmethod
    def part_kinds(cls) -> dict[str, PartKind]:
        """Return the parts of a pipeline's folder that the family needs."""
        kinds: dict[str, PartKind] = {
            "transformer": "diffusers",
            "vae": "diffusers",
            "scheduler": "scheduler",
        }
        for part in cls.ENCODERS:
            kinds[part] = "transformers"
        for part in cls.TOKENIZERS:
            kinds[part] = "tokenizer"
        return kinds

    @classmethod
    def folder(cls, settings: ModelConfig) -> PipelineFolder:
        """Return the files of a model of this family.

        Raises:
            ModelError: if files are missing, cut off, or those of another model.
        """
        return PipelineFolder.find(settings.path, cls.PIPELINE.__name__, cls.part_kinds())

    @classmethod
    def load(cls, settings: ModelConfig, device: torch.device) -> Self:
        """Load from a folder or the hub's cache.

        Raises:
            ModelError: if files are missing, cut off, or those of another model.
            ConfigurationError: if the attention kernel is not available.
        """
        folder = cls.folder(settings)
        dtype = dtype_on(settings, device)

        def build(part: str) -> Any:
            transformer = load_weights(cls.TRANSFORMER, folder, part, dtype)
            if settings.compile:
                compile_blocks(transformer, cls.CUTS_PADDING)
            return transformer

        transformer = cls.built(folder, settings, build)
        choose_attention(transformer, settings.attention)
        parts = Parts(
            transformer,
            # bfloat16 is no finer between two bright values than 8 bits.
            load_weights(cls.VAE, folder, "vae", torch.float32),
            load_scheduler(folder, cls.SCHEDULER),
            {part: load_weights(kind, folder, part, dtype) for part, kind in cls.ENCODERS.items()},
            load_tokenizers(folder),
        )
        return cls(parts, settings, device)

    @classmethod
    def built(cls, folder: PipelineFolder, settings: ModelConfig, build: Callable[[str], Any]) -> Any:
        """Build the transformer, or both in a family with two.

        Args:
            build: function that builds the transformer in a folder of the pipeline.
        """
        return build("transformer")

    @torch.no_grad()
    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Encode B prompts to the family's text length, one by one, so that none depends on its neighbours.

        Raises:
            ConfigurationError: if a prompt is longer than the text length.
        """
        for prompt in prompts:
            self.refuse_long(self._tokenizers, prompt, self.settings)
        with self._encoders_at_work():
            return Conditioning.joined([self._encode(prompt) for prompt in prompts])

    def velocity(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        """Predict v = noise - x0 at sigma in (0, 1], guided as the settings say; float32, (B, S, C)."""
        count, own_tokens = latents_BSC.shape[:2]
        tokens = conditioning.with_source(latents_BSC.to(self.dtype))
        positive = self._predict(tokens, sigma_B, conditioning)[:, :own_tokens].float()
        # Repeat it once: an index would be copied to the device at every step, waiting for the step before.
        if self._negative is not None and len(self._negative.mask_BL) != count:
            self._negative = self._negative.rows([0] * count)
        opposite = self._negative or conditioning.negative
        if opposite is None:
            return positive
        negative = self._predict(tokens, sigma_B, opposite)[:, :own_tokens].float()
        return self._guided(positive, negative)

    @torch.no_grad()
    def decode(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        """Decode latents (B, S, C) to uint8 RGB images (B, H, W, 3), or clips (B, F, H, W, 3), on the CPU.

        They are decoded one by one, so that only one sample's pixels at a time are in float32.
        """
        return torch.cat([self._pixels(latents_BSC[row : row + 1]) for row in range(len(latents_BSC))])

    @torch.no_grad()
    def encode_images(self, images: Sequence[np.ndarray]) -> torch.Tensor:
        """Encode uint8 RGB images (H, W, 3) to latents (B, S, C), float32, one by one."""
        if self.FRAME_SCALE:
            raise ConfigurationError(
                f"{self.settings.family} makes clips and encodes no images; choose another"
            )
        return torch.cat([self._encoded_image(image_HWC) for image_HWC in images])

    def resized(self, height: int, width: int) -> Self:
        """Return the same model, with the same weights, for images of another size in pixels."""
        other = copy(self)
        other.settings = self.settings.model_copy(update={"height": height, "width": width})
        other.latent_shape = math.prod(other._box), other._channels()
        return other

    def sequence_lengths(self) -> tuple[int, int]:
        """Return the image and text tokens of a sample, as the transformer's attention sees them."""
        return (
            self.image_tokens(self.vae.config, self.settings),
            self.text_tokens(self._tokenizers, self.text_length, self.settings),
        )

    def sigmas(self, steps: int) -> torch.Tensor:
        """Return the pipeline's schedule for this size: float64, shape (steps + 1,), falling to 0."""
        scheduler = type(self._scheduler).from_config(self._scheduler.config)
        self._set_timesteps(scheduler, steps)
        return scheduler.sigmas.double()

    @classmethod
    def refuse_long(cls, tokenizers: Mapping[str, Any], prompt: str, settings: ModelConfig) -> None:
        """Refuse a prompt that the family would truncate.

        Args:
            tokenizers: tokenizers by folder name.

        Raises:
            ConfigurationError: if it has more tokens than the limit.
        """
        text = cls._prompt_text(tokenizers, prompt, settings)
        cls._refuse_tokens(tokenizers, text, cls._dropped(tokenizers), prompt, settings)

    @classmethod
    def refuse_long_negative(cls, tokenizers: Mapping[str, Any], settings: ModelConfig) -> None:
        """Refuse a negative prompt that the family would truncate.

        Raises:
            ConfigurationError: see `refuse_long`.
        """
        cls.refuse_long(tokenizers, settings.negative_prompt, settings)

    @classmethod
    def _refuse_tokens(
        cls, tokenizers: Mapping[str, Any], text: str, dropped: int, prompt: str, settings: ModelConfig
    ) -> None:
        count = len(tokenizers[cls.TOKENIZERS[-1]](text).input_ids) - dropped
        limit = settings.text_length or cls.TEXT_LENGTH
        if count > limit:
            raise ConfigurationError(
                f"prompt {prompt!r} has {count} tokens; model.text_length is {limit}: shorten the prompt, or "
                "raise model.text_length"
            )

    @classmethod
    def check_size(cls, folder: PipelineFolder, settings: ModelConfig) -> None:
        """Refuse a size, or a number of frames, that the family cannot make.

        Raises:
            ConfigurationError: if a side is not a multiple of a token's, or frames are left over.
        """
        vae = folder.config("vae")
        unit = cls.pixels_a_token(vae)
        for name, value in zip(("height", "width"), settings.size, strict=True):
            if value % unit:
                near = max(unit, round(value / unit) * unit)
                raise ConfigurationError(
                    f"model.{name} is {value}; this model's sides must be multiples of {unit}, such as {near}"
                )
        frames, unit = settings.clip_frames, cls.frame_scale(vae)
        if (frames - 1) % unit:
            near = max(1, round((frames - 1) / unit) * unit + 1)
            raise ConfigurationError(
                f"model.frames is {frames}; for this model it must be 1 plus a multiple of {unit}, such as "
                f"{near}"
            )

    @classmethod
    def check_settings(cls, folder: PipelineFolder, settings: ModelConfig) -> None:
        """Refuse other settings that this family cannot work with; most families refuse none.

        Raises:
            ConfigurationError, ModelError: if so; with the setting.
        """
        scheduler = folder.config("scheduler")
        flows = scheduler.get("use_flow_sigmas") and scheduler.get("prediction_type") == "flow_prediction"
        if cls.SCHEDULER is not FlowMatchEulerDiscreteScheduler and not flows:
            raise ModelError(
                f"{folder.path / 'scheduler'} is not that of a flow matching model (use_flow_sigmas, "
                "prediction_type = flow_prediction); name a published model"
            )

    @classmethod
    def _prompt_text(cls, tokenizers: Mapping[str, Any], prompt: str, settings: ModelConfig) -> str:
        """Return the text that the tokenizer gets for a prompt: in most families the prompt itself."""
        if cls.THINKS is None:
            return prompt
        return tokenizers["tokenizer"].apply_chat_template(
            [{"role": "user", "content": prompt}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=cls.THINKS,
        )

    @classmethod
    def _dropped(cls, tokenizers: Mapping[str, Any]) -> int:
        """Return the number of leading tokens that the transformer does not get."""
        return cls.DROPPED

    @classmethod
    def latent_side(cls, vae: Mapping[str, Any]) -> int:
        """Return the side of a latent pixel in image pixels, from the VAE's configuration."""
        return 2 ** (len(vae["block_out_channels"]) - 1)

    @classmethod
    def frame_scale(cls, vae: Mapping[str, Any]) -> int:
        """Return the frames per latent frame, from the VAE's configuration."""
        return vae[cls.FRAME_SCALE] if cls.FRAME_SCALE else 1

    @classmethod
    def pixels_a_token(cls, vae: Mapping[str, Any]) -> int:
        """Return the side of a token in image pixels, which divides an image's sides."""
        return cls.PATCH * cls.latent_side(vae)

    @classmethod
    def latent_frames(cls, vae: Mapping[str, Any], settings: ModelConfig) -> int:
        """Return a clip's latent frames, the first of which is one frame; 1 for an image."""
        return (settings.clip_frames - 1) // cls.frame_scale(vae) + 1 if cls.FRAME_SCALE else 1

    @classmethod
    def image_tokens(cls, vae: Mapping[str, Any], settings: ModelConfig) -> int:
        """Return the image tokens that the transformer's attention sees, from the VAE's configuration."""
        unit = cls.pixels_a_token(vae)
        height, width = settings.size
        return (height // unit) * (width // unit) * cls.latent_frames(vae, settings)

    @classmethod
    def text_tokens(cls, tokenizers: Mapping[str, Any], text_length: int, settings: ModelConfig) -> int:
        """Return the text tokens that the transformer's attention sees, including padding.

        Args:
            tokenizers: tokenizers by folder name.
        """
        return text_length

    @property
    def _grid(self) -> tuple[int, int]:
        """Rows and columns of a sample's latent tokens."""
        unit = (self.pixels_a_token if self.PACKED else self.latent_side)(self.vae.config)
        height, width = self.settings.size
        return height // unit, width // unit

    @property
    def _box(self) -> tuple[int, ...]:
        """Rows and columns of a sample's latent tokens, after latent frames if it is a clip."""
        frames = (self.latent_frames(self.vae.config, self.settings),) if self.FRAME_SCALE else ()
        return *frames, *self._grid

    @abstractmethod
    def _encode(self, prompt: str) -> Conditioning:
        """Encode a prompt to one row, padded to the text length."""

    @abstractmethod
    def _predict(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        """Return the unguided v of all image tokens: (B, S, C), or (B, S + Z, C) with a source."""

    def _decode(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        """Decode to an image (1, 3, H, W), or a clip (1, 3, F, H, W), in [-1, 1]."""
        config = self.vae.config
        picture = self._picture(latents_BSC)
        if config.get("latents_mean"):
            mean, deviation = self._latents_scale()
            return self.vae.decode(picture * deviation + mean, return_dict=False)[0]
        scaled = picture / config["scaling_factor"] + (config.get("shift_factor") or 0)
        return self.vae.decode(scaled, return_dict=False)[0]

    def _encoded_image(self, image_HWC: np.ndarray) -> torch.Tensor:
        pixels_1CHW = torch.tensor(image_HWC, device=self.device).permute(2, 0, 1)[None].float() / 255
        latents = self._encode_picture(2 * pixels_1CHW - 1)
        return packed(latents) if self.PACKED else as_tokens(latents)

    def _encode_picture(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the most likely latents of an image in [-1, 1], (1, C, h, w): the inverse of `_decode`."""
        config, latents = self.vae.config, self.vae.encode(pixels).latent_dist.mode()
        if config.get("latents_mean"):
            mean, deviation = self._latents_scale()
            return (latents - mean) / deviation
        return (latents - (config.get("shift_factor") or 0)) * config["scaling_factor"]

    def _picture(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        """Return latents as the VAE takes them: (B, C, h, w), or (B, C, T, h, w)."""
        box = self._as_box(latents_BSC)
        # Contiguous: convolutions may round differently if channels come last.
        return torch.nn.functional.pixel_shuffle(box.contiguous(), 2) if self.PACKED else box

    def _as_box(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        """Return latents with a sample's tokens as rows and columns: (B, C, h, w), or (B, C, T, h, w)."""
        return latents_BSC.unflatten(1, self._box).movedim(-1, 1)

    def _latents_scale(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean and deviation of each VAE latent channel: (1, C, 1, 1, 1)."""
        mean, deviation = (
            torch.tensor(self.vae.config[name], device=self.device).view(1, -1, 1, 1, 1)
            for name in ("latents_mean", "latents_std")
        )
        return mean, deviation

    def _tokens(self, text: str, length: int, tokenizer: str = "") -> Any:
        """Return a text's tokens, padded or truncated to a length, and their mask.

        Args:
            length: tokens of the result.
            tokenizer: folder of the tokenizer; the last one by default.
        """
        tokenize = self._tokenizers[tokenizer or self.TOKENIZERS[-1]]
        return tokenize(
            text, padding="max_length", max_length=length, truncation=True, return_tensors="pt"
        ).to(self.device)

    def _prompt_tokens(self, prompt: str) -> Any:
        """Return the tokens of a prompt, padded to the text length, and their mask."""
        return self._tokens(self._prompt_text(self._tokenizers, prompt, self.settings), self.text_length)

    def _time(self, sigma_B: torch.Tensor) -> torch.Tensor:
        """Return noise levels as most pipelines round them."""
        return (sigma_B * 1000).to(self.dtype) / 1000

    def _pixels(self, latents_1SC: torch.Tensor) -> torch.Tensor:
        decoded = checked_pixels(self._decode(latents_1SC.float()))
        shades = (decoded / 2 + 0.5).clamp(0, 1).movedim(1, -1) * 255
        return shades.round().to(torch.uint8).cpu()

    def _encoded_negative(self) -> Conditioning | None:
        """Encode the negative prompt, one row for all samples; None if unused, or if each has its own."""
        return self.encode_prompts([self.settings.negative_prompt]) if self._guides else None

    def _set_timesteps(self, scheduler: Any, steps: int) -> None:
        """Set timesteps as most pipelines do: even from 1 to 1 / steps, shifted by the image tokens."""
        even = torch.linspace(1, 1 / steps, steps, dtype=torch.float64).numpy()
        scheduler.set_timesteps(sigmas=even, mu=shift_for(scheduler.config, self._schedule_tokens()))

    def _channels(self) -> int:
        """Return the channels of a latent token."""
        return self.transformer.config["in_channels"]  # pyright: ignore

    def _schedule_tokens(self) -> int:
        """Return the image tokens as the schedule counts them."""
        return self.sequence_lengths()[0]

    def _frames(self, tokens_BSC: torch.Tensor) -> int:
        """Return the number of images in the tokens: the sample and, in an edit, a source after it."""
        return tokens_BSC.shape[1] // self.latent_shape[0]

    def _guided(self, positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        return negative + self.settings.guidance * (positive - negative)

    @contextmanager
    def _encoders_at_work(self) -> Iterator[None]:
        if self.settings.encoders == "resident":
            yield
            return
        kept = [
            (module, name, tensor, tensor.data)
            for encoder in self._encoders.values()
            for module in encoder.modules()
            for name, tensor in (*module.named_parameters("", False), *module.named_buffers("", False))
        ]
        try:
            for encoder in self._encoders.values():
                encoder.to(self.device)
            yield
        finally:
            # Encoders are frozen, so drop the device's copy: copying it back takes seconds.
            for module, name, tensor, data in kept:
                tensor.data = data
                setattr(module, name, tensor)


def shift_for(config: Mapping[str, Any], image_tokens: int) -> float:
    """Return the schedule's shift mu, which is linear in the number of image tokens."""
    low, high = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    least, most = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
    slope = (most - least) / (high - low)
    return image_tokens * slope + (least - slope * low)


def whole_times(sigma_B: torch.Tensor) -> torch.Tensor:
    """Return noise levels as the integers below 1000 that other kinds of solvers use as timesteps."""
    return (sigma_B.double().clamp(max=_BELOW_ONE) * 1000 + _ROUNDING).floor().float()


def dtype_on(settings: ModelConfig, device: torch.device) -> torch.dtype:
    """Return the precision of the transformer and the encoders."""
    auto = "bfloat16" if device.type == "cuda" else "float32"
    return getattr(torch, auto if settings.dtype == "auto" else settings.dtype)


def unmasked(embeds_BLE: torch.Tensor, pooled_BE: torch.Tensor | None = None) -> Conditioning:
    """Return text conditioning for a model that was trained with padding: all tokens count."""
    mask_BL = torch.ones(embeds_BLE.shape[:2], dtype=torch.bool, device=embeds_BLE.device)
    return Conditioning(embeds_BLE, mask_BL, pooled_BE)


def as_tokens(box: torch.Tensor) -> torch.Tensor:
    """Return latents (B, C, h, w), or (B, C, T, h, w), as tokens: (B, S, C)."""
    return box.movedim(1, -1).flatten(1, -2)


def packed(picture_BCHW: torch.Tensor) -> torch.Tensor:
    """Return latents (B, C/4, H, W) as four pixels per token: (B, S, C)."""
    return as_tokens(torch.nn.functional.pixel_unshuffle(picture_BCHW, 2))


def choose_attention(transformer: Any, name: str) -> None:
    """Set a transformer's attention kernel by its name in diffusers; `auto` keeps its own.

    Raises:
        ConfigurationError: if it is not available on this machine.
    """
    if name == "auto":
        return
    try:
        transformer.set_attention_backend(name)
    except (ValueError, RuntimeError, ImportError) as error:
        raise ConfigurationError(
            f"model.attention is {name}, which is not available here: {error}; install it, or use native"
        ) from error
