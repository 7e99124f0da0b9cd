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

from gpu_runtime.models.families.pipeline_model import PipelineModel, as_tokens, unmasked, whole_times
from gpu_runtime.models.files.pipeline_folder import PipelineFolder
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig
from storage.errors import ModelError


class WanModel(PipelineModel):
    """The `gpu_runtime.models.protocol.DiffusionModel` of Wan 2.2."""

    PIPELINE = WanPipeline
    TRANSFORMER = WanTransformer3DModel
    VAE = AutoencoderKLWan
    ENCODERS = {"text_encoder": UMT5EncoderModel}  # noqa: RUF012
    TEXT_LENGTH = 512
    SCHEDULER = UniPCMultistepScheduler
    FRAME_SCALE = "scale_factor_temporal"

    @classmethod
    def _prompt_text(cls, tokenizers: Mapping[str, Any], prompt: str, settings: ModelConfig) -> str:
        """Return the prompt as the pipeline cleans it."""
        return prompt_clean(prompt)

    @classmethod
    def latent_side(cls, vae: Mapping[str, Any]) -> int:
        """Return the side of a latent pixel, in pixels of a frame.

        Raises:
            ModelError: the VAE is not that of the dense Wan 2.2; no size can be read before this is known.
        """
        if "scale_factor_spatial" not in vae or "scale_factor_temporal" not in vae:
            raise ModelError(
                "the VAE's config.json has no scale_factor_spatial and scale_factor_temporal, as those of "
                "Wan 2.1; only the dense Wan 2.2 is trained here: name Wan-AI/Wan2.2-TI2V-5B-Diffusers"
            )
        return vae["scale_factor_spatial"]

    @classmethod
    def check_settings(cls, folder: PipelineFolder, settings: ModelConfig) -> None:
        """Refuse a model of two transformers, and a scheduler of another kind.

        Raises:
            ConfigurationError, ModelError: if so; with the setting.
        """
        second = folder.index.get("transformer_2") or (None,)
        if folder.index.get("boundary_ratio") is not None or second[-1] is not None:
            raise ModelError(
                f"{settings.path} has two transformers, for high and for low noise, and one is trained here; "
                "name the dense model, Wan-AI/Wan2.2-TI2V-5B-Diffusers"
            )
        super().check_settings(folder, settings)

    def _set_timesteps(self, scheduler: Any, steps: int) -> None:
        scheduler.set_timesteps(steps)
        scheduler.sigmas[0] = 1

    def _encode(self, prompt: str) -> Conditioning:
        tokens = self._prompt_tokens(prompt)
        embeds_BLE = self._encoders["text_encoder"](tokens.input_ids, tokens.attention_mask)[0]
        # The model was trained with zeros behind the text: no mask.
        return unmasked(embeds_BLE * tokens.attention_mask[..., None].to(embeds_BLE.dtype))

    def _predict(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        velocity_BCThw = self.transformer(
            hidden_states=self._as_box(latents_BSC),
            timestep=whole_times(sigma_B),  # the pipeline repeats it for each token; one is enough
            encoder_hidden_states=conditioning.embeds_BLE.to(self.dtype),
            return_dict=False,
        )[0]
        return as_tokens(velocity_BCThw)
