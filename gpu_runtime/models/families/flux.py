"""FLUX.1-dev: a CLIP and a T5 as text encoders, packed latents, guidance as an input of the transformer.

FLUX.1 Kontext edits an image, whose tokens have 1 as their first coordinate; the sample's have 0.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py.
"""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL, FluxKontextPipeline, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextModel, T5EncoderModel

from gpu_runtime.models.families.editing_pipeline import EditingPipelineModel
from gpu_runtime.models.families.pipeline_model import PipelineModel, unmasked
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
    PACKED = True

    @classmethod
    def check_settings(cls, folder: PipelineFolder, settings: ModelConfig) -> None:
        """Refuse guidance for a model that was not made for it."""
        if settings.guidance != 1 and not folder.config("transformer").get("guidance_embeds"):
            raise ConfigurationError(
                f"model.guidance is {settings.guidance:g}, but {settings.path} takes none (its "
                "guidance_embeds is false, as in FLUX.1-schnell); leave it out"
            )

    def _encode(self, prompt: str) -> Conditioning:
        clip = self._tokenizers["tokenizer"]
        # CLIP sees only the beginning of a longer prompt, as in the pipeline.
        words = self._tokens(prompt, clip.model_max_length, "tokenizer")
        pooled_BE = self._encoders["text_encoder"](words.input_ids).pooler_output
        embeds_BLE = self._encoders["text_encoder_2"](self._prompt_tokens(prompt).input_ids)[0]
        return unmasked(embeds_BLE, pooled_BE)

    def _predict(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        assert conditioning.pooled_BE is not None
        guidance_B = None
        if self.transformer.config["guidance_embeds"]:  # pyright: ignore
            guidance_B = torch.full((len(latents_BSC),), self.settings.guidance, device=self.device)
        sides = (self._frames(latents_BSC), *self._grid)
        coordinates = torch.cartesian_prod(*(torch.arange(side, device=self.device) for side in sides))
        return self.transformer(
            hidden_states=latents_BSC,
            timestep=self._time(sigma_B),
            guidance=guidance_B,
            pooled_projections=conditioning.pooled_BE.to(self.dtype),
            encoder_hidden_states=conditioning.embeds_BLE.to(self.dtype),
            txt_ids=torch.zeros(conditioning.embeds_BLE.shape[1], 3, device=self.device, dtype=self.dtype),
            img_ids=coordinates.to(self.dtype),
            return_dict=False,
        )[0]


class FluxKontextModel(EditingPipelineModel, FluxModel):
    """The `gpu_runtime.models.protocol.DiffusionModel` and `EditingModel` of FLUX.1 Kontext."""

    PIPELINE = FluxKontextPipeline
