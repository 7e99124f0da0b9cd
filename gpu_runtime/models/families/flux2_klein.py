"""FLUX.2-klein: three layers of a language model as text, latents normalised by the VAE's statistics.

The distilled models take no guidance; the base models take classifier-free guidance, whose negative prompt
their pipeline leaves empty.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py; 4 coordinates of a token: image, row,
column, place in the text.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline, Flux2Transformer2DModel
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu
from transformers import Qwen3ForCausalLM

from gpu_runtime.models.families.pipeline_model import PipelineModel, packed, unmasked
from gpu_runtime.models.files.pipeline_folder import PipelineFolder
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig
from storage.errors import ConfigurationError

_LAYERS = (9, 18, 27)
"""Layers of the text encoder whose outputs make up a token."""


class Flux2KleinModel(PipelineModel):
    """The `gpu_runtime.models.protocol.DiffusionModel` of FLUX.2-klein."""

    PIPELINE = Flux2KleinPipeline
    TRANSFORMER = Flux2Transformer2DModel
    VAE = AutoencoderKLFlux2
    ENCODERS = {"text_encoder": Qwen3ForCausalLM}  # noqa: RUF012
    TEXT_LENGTH = 512
    PACKED = True
    THINKS = False

    @classmethod
    def check_settings(cls, folder: PipelineFolder, settings: ModelConfig) -> None:
        """Refuse guidance for a distilled model, and a text encoder with too few layers."""
        if settings.guidance != 1 and folder.index.get("is_distilled"):
            raise ConfigurationError(
                f"model.guidance is {settings.guidance:g}, but {settings.path} is distilled and takes none; "
                "leave it out, or name a base model, such as black-forest-labs/FLUX.2-klein-base-4B"
            )
        layers = folder.config("text_encoder")["num_hidden_layers"]
        if layers < _LAYERS[-1]:
            raise ConfigurationError(
                f"the text encoder of {settings.path} has {layers} layers, and FLUX.2-klein reads layer "
                f"{_LAYERS[-1]}; name another model"
            )

    def _encode(self, prompt: str) -> Conditioning:
        tokens = self._prompt_tokens(prompt)
        # Without the language model's head, whose logits are not used.
        output = self._encoders["text_encoder"].model(
            input_ids=tokens.input_ids,
            attention_mask=tokens.attention_mask,
            output_hidden_states=True,
            use_cache=False,
        )
        return unmasked(torch.cat([output.hidden_states[layer] for layer in _LAYERS], dim=-1))

    def _predict(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        embeds_BLE = conditioning.embeds_BLE.to(self.dtype)
        return self.transformer(
            hidden_states=latents_BSC,
            timestep=self._time(sigma_B),
            encoder_hidden_states=embeds_BLE,
            txt_ids=self._coordinates(1, 1, 1, embeds_BLE.shape[1]),
            img_ids=self._coordinates(1, *self._grid, 1),
            return_dict=False,
        )[0]

    def _coordinates(self, *sides: int) -> torch.Tensor:
        """Return the coordinates of tokens that fill a box of these sides: (1, tokens, 4)."""
        return torch.cartesian_prod(*(torch.arange(side, device=self.device) for side in sides))[None]

    def _set_timesteps(self, scheduler: Any, steps: int) -> None:
        even = torch.linspace(1, 1 / steps, steps, dtype=torch.float64).numpy()
        scheduler.set_timesteps(sigmas=even, mu=compute_empirical_mu(self._schedule_tokens(), steps))

    def _decode(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        mean_C, deviation_C = self._latents_scale()
        return self.vae.decode(self._picture(latents_BSC * deviation_C + mean_C), return_dict=False)[0]

    def _encode_picture(self, pixels: torch.Tensor) -> torch.Tensor:
        mean_C, deviation_C = self._latents_scale()
        tokens = packed(self.vae.encode(pixels).latent_dist.mode())
        return self._picture((tokens - mean_C) / deviation_C)

    def _latents_scale(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean and deviation of each token channel."""
        norm = self.vae.bn
        return norm.running_mean, torch.sqrt(norm.running_var + self.vae.config["batch_norm_eps"])
