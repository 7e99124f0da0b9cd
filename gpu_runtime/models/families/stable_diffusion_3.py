"""Stable Diffusion 3.5: two CLIPs and a T5 as text encoders, one latent pixel per token.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers import AutoencoderKL, SD3Transformer2DModel, StableDiffusion3Pipeline
from transformers import CLIPTextModelWithProjection, T5EncoderModel

from gpu_runtime.models.families.pipeline_model import PipelineModel, as_tokens, shift_for, unmasked
from gpu_runtime.models.files.pipeline_folder import PipelineFolder
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig
from storage.errors import ConfigurationError

_CLIP_PAIRS = (("tokenizer", "text_encoder"), ("tokenizer_2", "text_encoder_2"))


class StableDiffusion3Model(PipelineModel):
    """The `gpu_runtime.models.protocol.DiffusionModel` of Stable Diffusion 3 and 3.5."""

    PIPELINE = StableDiffusion3Pipeline
    TRANSFORMER = SD3Transformer2DModel
    VAE = AutoencoderKL
    ENCODERS = {  # noqa: RUF012
        "text_encoder": CLIPTextModelWithProjection,
        "text_encoder_2": CLIPTextModelWithProjection,
        "text_encoder_3": T5EncoderModel,
    }
    TOKENIZERS = ("tokenizer", "tokenizer_2", "tokenizer_3")
    TEXT_LENGTH = 256

    @classmethod
    def check_size(cls, folder: PipelineFolder, settings: ModelConfig) -> None:
        """Refuse a size that is no multiple of a token's, or exceeds the position table."""
        super().check_size(folder, settings)
        positions = folder.config("transformer")["pos_embed_max_size"]
        most = positions * cls.pixels_a_token(folder.config("vae"))
        height, width = settings.size
        if max(height, width) > most:
            raise ConfigurationError(
                f"model.height and model.width are {height} and {width}; this model's position table ends "
                f"at {most} pixels: lower them"
            )

    @classmethod
    def text_tokens(cls, tokenizers: Mapping[str, Any], text_length: int, settings: ModelConfig) -> int:
        """Return the tokens of the CLIPs, which share one length, plus those of T5."""
        return tokenizers["tokenizer"].model_max_length + text_length

    def _set_timesteps(self, scheduler: Any, steps: int) -> None:
        dynamic = scheduler.config.get("use_dynamic_shifting")
        config = {"max_shift": 1.16} | dict(scheduler.config)
        mu = shift_for(config, self._schedule_tokens()) if dynamic else None
        scheduler.set_timesteps(steps, mu=mu)

    def _encode(self, prompt: str) -> Conditioning:
        clips = [self._clip(*pair, prompt) for pair in _CLIP_PAIRS]
        clip_BLE = torch.cat([embeds for embeds, _ in clips], dim=-1)
        t5_BLE = self._encoders["text_encoder_3"](self._prompt_tokens(prompt).input_ids)[0]
        wider = t5_BLE.shape[-1] - clip_BLE.shape[-1]
        embeds_BLE = torch.cat([torch.nn.functional.pad(clip_BLE, (0, wider)), t5_BLE], dim=1)
        return unmasked(embeds_BLE, torch.cat([pooled for _, pooled in clips], dim=-1))

    def _clip(self, tokenizer: str, encoder: str, prompt: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the embeddings before the last layer, and the projected vector of the whole prompt."""
        length = self._tokenizers["tokenizer"].model_max_length
        # CLIP sees only the beginning of a longer prompt, as in the pipeline.
        tokens = self._tokens(prompt, length, tokenizer)
        output = self._encoders[encoder](tokens.input_ids, output_hidden_states=True)
        return output.hidden_states[-2], output[0]

    def _predict(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        assert conditioning.pooled_BE is not None
        velocity_BChw = self.transformer(
            hidden_states=self._as_box(latents_BSC),
            timestep=sigma_B * 1000,
            encoder_hidden_states=conditioning.embeds_BLE.to(self.dtype),
            pooled_projections=conditioning.pooled_BE.to(self.dtype),
            return_dict=False,
        )[0]
        return as_tokens(velocity_BChw)
