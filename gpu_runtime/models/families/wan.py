"""Wan 2.2, text to video: the dense model of 5 billion weights, one transformer over latent frames.

Its VAE decodes one latent frame at a time, so that only the pixels grow with a clip's length. Published
folders come with the solver UniPC, whose noise levels are used: sampling here is of first order.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py; T latent frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from transformers import UMT5EncoderModel

from gpu_runtime.models.families.pipeline_model import PipelineModel
from gpu_runtime.models.files.pipeline_folder import PipelineFolder
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig
from storage.errors import ConfigurationError, ModelError

_TIMES = 1000
_BELOW_ONE = 1 - 1e-6
"""UniPC's first noise level, which stands for 1."""

_ROUNDING = 1e-4
"""More than a time loses when its noise level is rounded to float32."""


class WanModel(PipelineModel):
    """The `gpu_runtime.models.protocol.DiffusionModel` of Wan 2.2."""

    PIPELINE = WanPipeline
    TRANSFORMER = WanTransformer3DModel
    VAE = AutoencoderKLWan
    ENCODERS = {"text_encoder": UMT5EncoderModel}  # noqa: RUF012
    TOKENIZERS = ("tokenizer",)
    TEXT_LENGTH = 512
    SCHEDULER = UniPCMultistepScheduler

    @classmethod
    def count_tokens(cls, tokenizers: Mapping[str, Any], prompt: str) -> int:
        """Return the tokens of the prompt as the pipeline cleans it."""
        return len(tokenizers["tokenizer"](prompt_clean(prompt)).input_ids)

    @classmethod
    def pixels_a_token(cls, vae: Mapping[str, Any], transformer: Mapping[str, Any]) -> int:
        """Return the side of the transformer's patch, in pixels of a frame.

        Raises:
            ModelError: the VAE is not that of the dense Wan 2.2; no size can be read before this is known.
        """
        if "scale_factor_spatial" not in vae or "scale_factor_temporal" not in vae:
            raise ModelError(
                "the VAE's config.json has no scale_factor_spatial and scale_factor_temporal, as those of "
                "Wan 2.1; only the dense Wan 2.2 is trained here: name Wan-AI/Wan2.2-TI2V-5B-Diffusers"
            )
        return vae["scale_factor_spatial"] * transformer["patch_size"][1]

    @classmethod
    def latent_frames(cls, vae: Mapping[str, Any], frames: int) -> int:
        """Return the latent frames of a clip: its first frame, and each further four."""
        return (frames - 1) // vae["scale_factor_temporal"] + 1

    @classmethod
    def check_settings(cls, folder: PipelineFolder, settings: ModelConfig) -> None:
        """Refuse a model of two transformers, a scheduler of another kind, and frames that do not divide.

        Raises:
            ConfigurationError, ModelError: if so; with the setting.
        """
        second = folder.index.get("transformer_2") or (None,)
        if folder.index.get("boundary_ratio") is not None or second[-1] is not None:
            raise ModelError(
                f"{settings.path} has two transformers, for high and for low noise, and one is trained here; "
                "name the dense model, Wan-AI/Wan2.2-TI2V-5B-Diffusers"
            )
        scheduler = folder.config("scheduler")
        if not scheduler.get("use_flow_sigmas") or scheduler.get("prediction_type") != "flow_prediction":
            raise ModelError(
                f"{folder.path / 'scheduler'} is not that of a flow matching model (use_flow_sigmas, "
                "prediction_type = flow_prediction); name a Wan model as it is published"
            )
        unit, frames = folder.config("vae")["scale_factor_temporal"], settings.clip_frames
        if frames % unit != 1:
            near = max(1, round((frames - 1) / unit) * unit + 1)
            raise ConfigurationError(
                f"model.frames is {frames}; this model makes clips of 1 frame and a multiple of {unit}, such "
                f"as {near}"
            )

    @property
    def _grid(self) -> tuple[int, int]:
        scale = self.vae.config["scale_factor_spatial"]
        return self.height // scale, self.width // scale

    @property
    def _box(self) -> tuple[int, int, int]:
        """Latent frames, rows and columns."""
        return self.latent_frames(self.vae.config, self.settings.clip_frames), *self._grid

    def _latent_shape(self) -> tuple[int, int]:
        frames, rows, columns = self._box
        return frames * rows * columns, self.vae.config["z_dim"]

    def _set_timesteps(self, scheduler: Any, steps: int) -> None:
        scheduler.set_timesteps(steps)
        scheduler.sigmas[0] = 1

    def _encode(self, prompt: str) -> Conditioning:
        tokens = self._tokenizers["tokenizer"](
            prompt_clean(prompt), padding="max_length", max_length=self.text_length, return_tensors="pt"
        ).to(self.device)
        embeds_BLE = self._encoders["text_encoder"](tokens.input_ids, tokens.attention_mask)[0]
        # The model was trained with zeros behind the text: no mask.
        embeds_BLE = embeds_BLE * tokens.attention_mask[..., None].to(embeds_BLE.dtype)
        return Conditioning(embeds_BLE, torch.ones_like(tokens.attention_mask, dtype=torch.bool))

    def _predict(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        # Whole numbers, as UniPC gives them. The pipeline repeats the time for each token; one is enough.
        time_B = (sigma_B.double().clamp(max=_BELOW_ONE) * _TIMES + _ROUNDING).floor()
        velocity_BCThw = self.transformer(
            hidden_states=self._as_box(latents_BSC),
            timestep=time_B.float(),
            encoder_hidden_states=conditioning.embeds_BLE.to(self.dtype),
            return_dict=False,
        )[0]
        return velocity_BCThw.movedim(1, -1).flatten(1, 3)

    def _decode(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        config = self.vae.config
        mean_C, deviation_C = (
            torch.tensor(config[name], device=self.device) for name in ("latents_mean", "latents_std")
        )
        return self.vae.decode(self._as_box(latents_BSC * deviation_C + mean_C), return_dict=False)[0]

    def _as_box(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        return latents_BSC.unflatten(1, self._box).movedim(-1, 1)
