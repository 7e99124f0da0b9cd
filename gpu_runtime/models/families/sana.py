"""Sana: linear attention over latents of 32x32 pixels each, and cross-attention to text.

An instruction to the text encoder precedes a prompt, but not a negative one; its tokens are dropped.
Published folders come with the solver DPM++, whose noise levels are used: sampling here is first-order.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from diffusers import AutoencoderDC, DPMSolverMultistepScheduler, SanaPipeline, SanaTransformer2DModel
from transformers import Gemma2Model

from gpu_runtime.models.families.pipeline_model import PipelineModel, as_tokens, whole_times
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig

_INSTRUCTION = "\n".join(
    inspect.signature(SanaPipeline.__call__).parameters["complex_human_instruction"].default
)


class SanaModel(PipelineModel):
    """The `gpu_runtime.models.protocol.DiffusionModel` of Sana."""

    PIPELINE = SanaPipeline
    TRANSFORMER = SanaTransformer2DModel
    VAE = AutoencoderDC
    ENCODERS = {"text_encoder": Gemma2Model}  # noqa: RUF012
    TEXT_LENGTH = 300
    MASKED = True
    SCHEDULER = DPMSolverMultistepScheduler
    PATCH = 1

    @classmethod
    def latent_side(cls, vae: Mapping[str, Any]) -> int:
        """Return the side of a latent pixel in image pixels."""
        return 2 ** (len(vae["encoder_block_out_channels"]) - 1)

    @classmethod
    def _prompt_text(cls, tokenizers: Mapping[str, Any], prompt: str, settings: ModelConfig) -> str:
        return _INSTRUCTION + prompt.lower().strip()

    @classmethod
    def _dropped(cls, tokenizers: Mapping[str, Any]) -> int:
        return len(tokenizers["tokenizer"](_INSTRUCTION).input_ids) - 2

    @classmethod
    def refuse_long_negative(cls, tokenizers: Mapping[str, Any], settings: ModelConfig) -> None:
        """Refuse a negative prompt that would be truncated; no instruction precedes it."""
        negative = settings.negative_prompt
        cls._refuse_tokens(tokenizers, negative.lower().strip(), 0, negative, settings)

    def _set_timesteps(self, scheduler: Any, steps: int) -> None:
        scheduler.set_timesteps(steps)

    def _encode(self, prompt: str) -> Conditioning:
        text = self._prompt_text(self._tokenizers, prompt, self.settings)
        return self._embedded(text, self._dropped(self._tokenizers) + self.text_length)

    def _encoded_negative(self) -> Conditioning | None:
        if not self._guides:
            return None
        with self._encoders_at_work(), torch.no_grad():
            return self._embedded(self.settings.negative_prompt.lower().strip(), self.text_length)

    def _embedded(self, text: str, length: int) -> Conditioning:
        """Return the first and last tokens, `text_length` in all, of a text padded to a length."""
        self._tokenizers["tokenizer"].padding_side = "right"
        tokens = self._tokens(text, length)
        output_BLE = self._encoders["text_encoder"](tokens.input_ids, tokens.attention_mask)[0]
        chosen = [0, *range(length - self.text_length + 1, length)]
        return Conditioning(output_BLE[:, chosen], tokens.attention_mask[:, chosen].bool())

    def _predict(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        transformer: Any = self.transformer
        velocity_BChw = transformer(
            hidden_states=self._as_box(latents_BSC),
            timestep=whole_times(sigma_B) * transformer.config.timestep_scale,
            encoder_hidden_states=conditioning.embeds_BLE.to(self.dtype),
            encoder_attention_mask=conditioning.mask_BL,
            return_dict=False,
        )[0]
        return as_tokens(velocity_BChw)

    def _encode_picture(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.vae.encode(pixels).latent * self.vae.config["scaling_factor"]
