"""HunyuanVideo 1.5, text to video: a language model as text encoder, and a ByT5 that spells quoted texts.

A row of text holds the tokens of both encoders, one behind the other; the transformer puts those that are
not padding first. Places for an image, which it may start from, are empty. diffusers' pipeline loads no LoRA;
its transformer does.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from diffusers import (
    AutoencoderKLHunyuanVideo15,
    HunyuanVideo15Pipeline,
    HunyuanVideo15Transformer3DModel,
    HunyuanVideoPipeline,
)
from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import format_text_input
from transformers import Qwen2_5_VLTextModel, T5EncoderModel

from gpu_runtime.models.families.frames_in_turn import decode_in_turn
from gpu_runtime.models.families.pipeline_model import PipelineModel, as_tokens
from gpu_runtime.models.files.pipeline_folder import PipelineFolder
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig
from storage.errors import ModelError

_SPELLED = 256
"""Tokens of the quoted texts."""

_OF_IMAGE = 729
"""Tokens of an image to start from."""

_ENCODE = HunyuanVideo15Pipeline._get_mllm_prompt_embeds


class HunyuanVideo15Model(PipelineModel):
    """The `gpu_runtime.models.protocol.DiffusionModel` of HunyuanVideo 1.5."""

    PIPELINE = HunyuanVideo15Pipeline
    ADAPTERS = HunyuanVideoPipeline
    TRANSFORMER = HunyuanVideo15Transformer3DModel
    VAE = AutoencoderKLHunyuanVideo15
    ENCODERS = {"text_encoder": Qwen2_5_VLTextModel, "text_encoder_2": T5EncoderModel}  # noqa: RUF012
    TOKENIZERS = ("tokenizer_2", "tokenizer")
    TEXT_LENGTH = 1000
    MASKED = True
    DROPPED = 108
    PATCH = 1
    FRAME_SCALE = "temporal_compression_ratio"

    @classmethod
    def latent_side(cls, vae: Mapping[str, Any]) -> int:
        """Return the side of a latent pixel, in pixels of a frame."""
        return vae["spatial_compression_ratio"]

    @classmethod
    def check_settings(cls, folder: PipelineFolder, settings: ModelConfig) -> None:
        """Refuse a model that was distilled to few steps."""
        super().check_settings(folder, settings)
        if folder.config("transformer").get("use_meanflow"):
            raise ModelError(
                f"{settings.path} takes two noise levels at once (use_meanflow), and training needs one; "
                "name hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-480p_t2v, or another that does not"
            )

    @classmethod
    def _prompt_text(cls, tokenizers: Mapping[str, Any], prompt: str, settings: ModelConfig) -> str:
        message = signature(_ENCODE).parameters["system_message"].default
        (chat,) = format_text_input([prompt], message)
        return tokenizers["tokenizer"].apply_chat_template(chat, add_generation_prompt=True, tokenize=False)

    @classmethod
    def text_tokens(cls, tokenizers: Mapping[str, Any], text_length: int, settings: ModelConfig) -> int:
        """Return the tokens of both encoders and of the missing image."""
        return text_length + _SPELLED + _OF_IMAGE

    def _channels(self) -> int:
        return self.vae.config["latent_channels"]

    def _decode(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        scaled_BCThw = self._picture(latents_BSC) / self.vae.config["scaling_factor"]
        return decode_in_turn(self.vae.decoder, scaled_BCThw)

    def _encode(self, prompt: str) -> Conditioning:
        said_BLE, said_BL = _ENCODE(
            self._encoders["text_encoder"],
            self._tokenizers["tokenizer"],
            prompt,
            self.device,
            tokenizer_max_length=self.text_length,
        )
        spelled_BLE, spelled_BL = HunyuanVideo15Pipeline._get_byt5_prompt_embeds(
            self._tokenizers["tokenizer_2"], self._encoders["text_encoder_2"], prompt, self.device, _SPELLED
        )
        wider = said_BLE.shape[-1] - spelled_BLE.shape[-1]
        embeds = [said_BLE, torch.nn.functional.pad(spelled_BLE, (0, wider))]
        return Conditioning(torch.cat(embeds, dim=1), torch.cat([said_BL, spelled_BL], dim=1).bool())

    def _predict(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        config: Any = self.transformer.config
        box_BCThw = self._as_box(latents_BSC)
        said_BLE, spelled_BLE = conditioning.embeds_BLE.to(self.dtype).split([self.text_length, _SPELLED], 1)
        said_BL, spelled_BL = conditioning.mask_BL.to(self.dtype).split([self.text_length, _SPELLED], 1)
        velocity_BCThw = self.transformer(
            # Neither the image to start from nor its mask.
            hidden_states=torch.cat([box_BCThw, torch.zeros_like(box_BCThw), 0 * box_BCThw[:, :1]], dim=1),
            timestep=(sigma_B * 1000).to(self.dtype),
            encoder_hidden_states=said_BLE,
            encoder_attention_mask=said_BL,
            encoder_hidden_states_2=spelled_BLE[..., : config["text_embed_2_dim"]],
            encoder_attention_mask_2=spelled_BL,
            image_embeds=said_BLE.new_zeros(len(said_BLE), _OF_IMAGE, config["image_embed_dim"]),
            return_dict=False,
        )[0]
        return as_tokens(velocity_BCThw)
