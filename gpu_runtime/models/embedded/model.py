"""The embedded model: diffusers' Qwen-Image transformer, small enough to be kept in the repository.

Class and inference are those of the large model; only the sizes differ, and two parts that need downloads
are replaced: the VAE by a fixed PCA of patches, the text encoder by hashed embeddings.

A model that edits gets the source image's tokens after the sample's, at the same positions in another frame,
as Qwen-Image-Edit and FLUX Kontext do; the velocity is that of the sample's own tokens. In a clip, each
frame's tokens follow the previous frame's, at the same positions in the next frame.

Guidance is classifier-free, for a model that was also trained without prompts (`without_prompts`).

Shape suffixes: B samples, L text tokens, E text width, S image tokens, C latent channels, F frames, H W
pixels.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from diffusers import QwenImageTransformer2DModel
from safetensors import SafetensorError

from gpu_runtime.models.embedded import text_encoder
from gpu_runtime.models.embedded.folder import (
    CODEC_FILE,
    PATCH,
    SETTINGS_FILE,
    TRANSFORMER_CONFIG,
    TRANSFORMER_FOLDER,
    TRANSFORMER_WEIGHTS,
    EmbeddedSettings,
    read_settings,
    resolve_folder,
)
from gpu_runtime.models.embedded.pca_codec import PatchCodec
from gpu_runtime.models.files.finite_numbers import refuse_weights_not_finite
from gpu_runtime.models.files.part_check import empty_part, refuse_other_names
from gpu_runtime.models.files.pipeline_folder import read_json
from gpu_runtime.models.protocol import Conditioning
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, ModelError


class EmbeddedModel:
    """A `DiffusionModel`, `EditingModel` and `ModelOutline` of `gpu_runtime.models.protocol`.

    Its files are in the repository. It is small, so it is loaded before a run in place of an outline.

    Args:
        settings: sizes of images and text.
        transformer: loaded transformer, on the model's device.
        guidance: strength of classifier-free guidance; 1 means none, with one pass.

    Raises:
        ModelError: if the parts belong to different models.
    """

    def __init__(
        self,
        settings: EmbeddedSettings,
        codec: PatchCodec,
        transformer: QwenImageTransformer2DModel,
        guidance: float = 1.0,
    ) -> None:
        self._guidance = guidance
        self.transformer: torch.nn.Module = transformer.eval()
        parameter = next(transformer.parameters())
        self.device = parameter.device
        self.dtype = parameter.dtype
        self.codec = codec.to(self.device)
        self._set_size(settings)
        if transformer.config["in_channels"] != codec.channels:
            raise ModelError(
                f"the transformer takes {transformer.config['in_channels']} latent channels, the codec "
                f"makes {codec.channels}; the files belong to two different models"
            )
        if transformer.config["joint_attention_dim"] != settings.text_width:
            raise ModelError(
                f"the transformer takes text of width {transformer.config['joint_attention_dim']}, "
                f"{SETTINGS_FILE} says {settings.text_width}; the files belong to two different models"
            )

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        transformer: QwenImageTransformer2DModel | None = None,
        guidance: float = 1.0,
    ) -> Self:
        """Load a folder that `save` wrote, or `embedded:NAME` for a model in the repository.

        A given transformer (built around a neighbour's weights) replaces the folder's.

        Args:
            path: folder, or `embedded:NAME`.
            guidance: strength of guidance, as for the class.

        Raises:
            ModelError: if a file is missing or damaged, the files do not fit each other, or a number in
                them is not finite.
        """
        folder = resolve_folder(path)
        settings = read_settings(folder / SETTINGS_FILE)
        codec = PatchCodec.load(folder / CODEC_FILE)
        moved: Any = _load_transformer(folder, dtype) if transformer is None else transformer
        return cls(settings, codec, moved.to(device), guidance)

    def save(self, path: str | Path) -> None:
        """Write the folder that `load` reads; existing files in it are replaced."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.settings.model_dump(), indent=2)
        (folder / SETTINGS_FILE).write_text(text + "\n", encoding="utf-8")
        self.codec.save(folder / CODEC_FILE)
        transformer: Any = self.transformer
        transformer.save_pretrained(str(folder / TRANSFORMER_FOLDER))

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Encode B prompts to (B, L, E) float32; the same prompt gives the same bits in any list.

        Raises:
            ConfigurationError: if a prompt is longer than the model's text length, or the model edits.
        """
        if self.settings.edits:
            raise ConfigurationError(
                "this model edits an image, and a prompt has none; use a .jsonl file whose rows have `image`"
            )
        return self._encoded(prompts)

    def encode_edits(self, prompts: Sequence[str], sources: Sequence[np.ndarray]) -> Conditioning:
        """Encode B prompts and the images they ask to change; see `EditingModel`.

        Raises:
            ConfigurationError: if a prompt is too long for the model, or the model does not edit.
        """
        if not self.settings.edits:
            raise ConfigurationError("this model draws from text alone, and a prompt has an `image`; drop it")
        images = torch.from_numpy(np.stack(sources)).to(self.device)
        return replace(self._encoded(prompts), source_BZC=self.encode_images(sources), source_BHWC=images)

    def encode_images(self, images: Sequence[np.ndarray]) -> torch.Tensor:
        """Encode uint8 RGB images (H, W, 3) to latents (B, S, C), float32."""
        # One by one: the size of a matrix product changes its rounding.
        one_by_one = [torch.from_numpy(np.array(image_HWC)).to(self.device)[None] for image_HWC in images]
        return torch.cat([self.codec.encode(image_1HWC) for image_1HWC in one_by_one])

    def _encoded(self, prompts: Sequence[str]) -> Conditioning:
        settings = self.settings
        embeds_BLE, mask_BL = text_encoder.encode(prompts, settings.text_length, settings.text_width)
        return Conditioning(torch.from_numpy(embeds_BLE), torch.from_numpy(mask_BL)).to(self.device)

    def velocity(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        """Predict v = noise - x0 at sigma in (0, 1], guided; float32 in and out, shape (B, S, C)."""
        positive = self._predict(latents_BSC, sigma_B, conditioning)
        if self._guidance == 1:
            return positive
        promptless = without_prompts(conditioning, torch.ones_like(sigma_B, dtype=torch.bool))
        negative = self._predict(latents_BSC, sigma_B, promptless)
        return negative + self._guidance * (positive - negative)

    def _predict(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        # The text keeps its full length and the mask hides the padding: cutting to the longest prompt
        # of the batch would make a sample's bits depend on its neighbours.
        output = self.transformer(
            hidden_states=conditioning.with_source(latents_BSC.to(self.dtype)),
            encoder_hidden_states=conditioning.embeds_BLE.to(self.dtype),
            encoder_hidden_states_mask=conditioning.mask_BL,
            timestep=sigma_B.to(self.dtype),
            img_shapes=[self._grids] * len(latents_BSC),
            return_dict=False,
        )
        return output[0][:, : latents_BSC.shape[1]].float()

    def encode(self, pictures: np.ndarray) -> torch.Tensor:
        """Encode B images or clips, uint8 RGB, to float32 latents (B, S, C)."""
        return self.codec.encode(torch.from_numpy(stacked_frames(pictures)).to(self.device))

    def decode(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        """Decode latents (B, S, C) to uint8 RGB images (B, H, W, 3), or clips (B, F, H, W, 3), on the CPU."""
        frames, height, width = self.settings.frames, self.settings.height, self.settings.width
        with torch.no_grad():
            images = self.codec.decode(latents_BSC, (frames or 1) * height, width).cpu()
        return images.unflatten(1, (frames, height)) if frames else images

    def decode_edits(self, latents_BSC: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        """Decode latents (B, S, C) of edits to uint8 images on the CPU; see `PatchCodec.decode_edits`."""
        assert conditioning.source_BZC is not None and conditioning.source_BHWC is not None
        with torch.no_grad():
            images = self.codec.decode_edits(latents_BSC, conditioning.source_BZC, conditioning.source_BHWC)
        return images.cpu()

    def resized(self, height: int, width: int) -> Self:
        """Return the same model, with the same weights, for images of another size in pixels.

        Raises:
            ConfigurationError: if a side is not a multiple of a patch's.
        """
        if height % PATCH or width % PATCH:
            raise ConfigurationError(
                f"images of {width} x {height} pixels were requested; this model's sides must be multiples "
                f"of {PATCH}"
            )
        other = copy(self)
        other._set_size(self.settings.model_copy(update={"height": height, "width": width}))
        return other

    def _set_size(self, settings: EmbeddedSettings) -> None:
        frames = settings.frames or 1
        rows, columns = settings.height // PATCH, settings.width // PATCH
        self.settings, self.latent_shape = settings, (frames * rows * columns, self.codec.channels)
        self._grids = [(frames, rows, columns)] * (2 if settings.edits else 1)

    def check_prompts(self, prompts: Sequence[str]) -> None:
        """Refuse a prompt that is too long, whether or not the model edits."""
        for prompt in prompts:
            text_encoder.fitting_tokens(prompt, self.settings.text_length)

    def check_machine(self, config: RunConfig | None = None, keeps_reference: bool = False) -> None:
        """Accept every machine: the model has a few million parameters and a kernel that all CPUs have."""

    def memory_in_words(self, config: RunConfig, keeps_reference: bool) -> str:
        """Return an empty text: it needs little memory."""
        return ""

    def text_length_for(self, degree: int) -> None:
        """Return None: the model's length is fixed, and a mask hides padding."""

    def blank_image(self) -> np.ndarray:
        """Return the image or clip decoded from zeros, uint8, (H, W, 3) or (F, H, W, 3)."""
        return self.decode(torch.zeros(1, *self.latent_shape))[0].numpy()

    def sequence_lengths(self) -> tuple[int, int]:
        """Return the image and text tokens of a sample; a source's tokens are image tokens."""
        return self.latent_shape[0] * len(self._grids), self.settings.text_length

    def sigmas(self, steps: int) -> torch.Tensor:
        """Return even noise levels: float64, shape (steps + 1,), falling from 1 to 0."""
        return 1 - torch.arange(steps + 1, dtype=torch.float64) / steps


def without_prompts(conditioning: Conditioning, dropped_B: torch.Tensor) -> Conditioning:
    """Return conditioning in which some rows have one visible token of zeros in place of their prompt.

    Args:
        dropped_B: True for the rows whose prompt is dropped.
    """
    is_first_L = torch.arange(conditioning.mask_BL.shape[1], device=conditioning.mask_BL.device) == 0
    return replace(
        conditioning,
        embeds_BLE=conditioning.embeds_BLE.masked_fill(dropped_B[:, None, None], 0.0),
        mask_BL=torch.where(dropped_B[:, None], is_first_L, conditioning.mask_BL),
    )


def stacked_frames(pictures: np.ndarray) -> np.ndarray:
    """Return clips (B, F, H, W, 3) as images of vertically stacked frames; images are unchanged.

    The height is a multiple of the patch's, so the image's patches are the frames' patches, in order.
    """
    return pictures.reshape(len(pictures), -1, *pictures.shape[-2:])


def _load_transformer(folder: Path, dtype: torch.dtype) -> QwenImageTransformer2DModel:
    """Load the folder's transformer; first refuse files that diffusers would complete with random weights."""
    part, file = folder / TRANSFORMER_FOLDER, folder / TRANSFORMER_WEIGHTS
    config = read_json(folder / TRANSFORMER_CONFIG)
    empty = empty_part(
        lambda: QwenImageTransformer2DModel.from_config(config),
        QwenImageTransformer2DModel.__name__, part, config, [file],
    )  # fmt: skip
    refuse_other_names(empty, part, [file], exactly=True)
    try:
        loaded: Any = QwenImageTransformer2DModel.from_pretrained(
            str(folder), subfolder=TRANSFORMER_FOLDER, torch_dtype=dtype, low_cpu_mem_usage=False
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{part} cannot be loaded ({error}); restore the files") from error
    refuse_weights_not_finite(loaded, str(file))
    return loaded
