"""FLUX.1-dev: a CLIP and a T5 as text encoders, packed latents, guidance as an input of the transformer.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers import AutoencoderKL, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextModel, T5EncoderModel

from gpu_runtime.models.families.pipeline_model import PipelineModel, unpacked
from gpu_runtime.models.files.pipeline_folder import PipelineFolder
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig
from storage.errors import ConfigurationError


class FluxModel(PipelineModel):
    """The `gpu_runtime.models.protocol.DiffusionModel` of FLUX.1."""

    PIPELINE = FluxPipeline
    TRANSFORMER = FluxTransformer2DModel
    VAE = AutoencoderKL
    ENCODERS = {"text_encoder": CLIPTextModel, "text_encoder_2": T5EncoderModel}  # noqa: RUF012
    TOKENIZERS = ("tokenizer", "tokenizer_2")
    TEXT_LENGTH = 512
    TAKES_NEGATIVE = False

    @classmethod
    def count_tokens(cls, tokenizers: Mapping[str, Any], prompt: str) -> int:
        """Return the tokens of T5; CLIP sees the beginning of a longer prompt, as in the pipeline."""
        return len(tokenizers["tokenizer_2"](prompt).input_ids)

    @classmethod
    def pixels_a_token(cls, vae: Mapping[str, Any], transformer: Mapping[str, Any]) -> int:
        """Return the side of a token in image pixels: two latent pixels."""
        return 2 * 2 ** (len(vae["block_out_channels"]) - 1)

    @classmethod
    def check_settings(cls, folder: PipelineFolder, settings: ModelConfig) -> None:
        """Refuse guidance for a model that was not made for it.

        Raises:
            ConfigurationError: if so; with the setting.
        """
        if settings.guidance != 1 and not folder.config("transformer").get("guidance_embeds"):
            raise ConfigurationError(
                f"model.guidance is {settings.guidance:g}, but {settings.path} takes none (its "
                "guidance_embeds is false, as in FLUX.1-schnell); leave it out"
            )

    def _encode(self, prompt: str) -> Conditioning:
        clip = self._tokenizers["tokenizer"]
        words = clip(
            prompt,
            padding="max_length",
            max_length=clip.model_max_length,
            truncation=True,
            return_tensors="pt",
        )
        pooled_BE = self._encoders["text_encoder"](words.input_ids.to(self.device)).pooler_output
        tokens = self._tokenizers["tokenizer_2"](
            prompt, padding="max_length", max_length=self.text_length, return_tensors="pt"
        )
        # The model was trained with T5's padding: no mask.
        embeds_BLE = self._encoders["text_encoder_2"](tokens.input_ids.to(self.device))[0]
        mask_BL = torch.ones(embeds_BLE.shape[:2], dtype=torch.bool, device=self.device)
        return Conditioning(embeds_BLE, mask_BL, pooled_BE)

    def _predict(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        assert conditioning.pooled_BE is not None
        guidance_B = None
        if self.transformer.config["guidance_embeds"]:  # pyright: ignore
            guidance_B = torch.full((len(latents_BSC),), self.settings.guidance, device=self.device)
        sides = (self._frames(latents_BSC), *self._grid)
        places = torch.cartesian_prod(*(torch.arange(side, device=self.device) for side in sides))
        return self.transformer(
            hidden_states=latents_BSC,
            timestep=(sigma_B * 1000).to(self.dtype) / 1000,
            guidance=guidance_B,
            pooled_projections=conditioning.pooled_BE.to(self.dtype),
            encoder_hidden_states=conditioning.embeds_BLE.to(self.dtype),
            txt_ids=torch.zeros(conditioning.embeds_BLE.shape[1], 3, device=self.device, dtype=self.dtype),
            img_ids=places.to(self.dtype),
            return_dict=False,
        )[0]

    def _decode(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        rows, columns = self._grid
        config = self.vae.config
        latents = unpacked(latents_BSC, 2 * rows, 2 * columns)
        return self.vae.decode(
            latents / config["scaling_factor"] + config["shift_factor"], return_dict=False
        )[0]
