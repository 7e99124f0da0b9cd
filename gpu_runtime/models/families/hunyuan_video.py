"""HunyuanVideo 1.5, text to video: a language model as text encoder, and a ByT5 that spells quoted texts.

In its transformer no token sees padding, so it gets none: each sample goes through it alone, with its
prompt's tokens, and attention needs no mask, which few fast kernels support. It also gets no tokens of a
starting image. diffusers' pipeline loads no LoRA; its transformer does.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from gpu_runtime.models.joint_attention import JointAttention
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig
from storage.errors import ModelError

_SPELLED = 256
"""Tokens of the quoted texts."""

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
    CUTS_PADDING = True
    DROPPED = 108
    PATCH = 1
    FRAME_SCALE = "temporal_compression_ratio"

    @classmethod
    def built(cls, folder: PipelineFolder, settings: ModelConfig, build: Callable[[str], Any]) -> Any:
        """Build the transformer, with attention that takes no mask."""
        transformer = build("transformer")
        for block in transformer.transformer_blocks:
            block.attn.processor = JointAttention()
        return transformer

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
        """Return the most tokens of both encoders; a text without quotes has none from the second."""
        return text_length + _SPELLED

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
        return Conditioning(said_BLE, said_BL.bool(), second=Conditioning(spelled_BLE, spelled_BL.bool()))

    def _predict(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        assert conditioning.second is not None
        box_BCThw = self._as_box(latents_BSC)
        # Neither a starting image nor its mask.
        given = torch.cat([box_BCThw, torch.zeros_like(box_BCThw), 0 * box_BCThw[:, :1]], dim=1)
        times_B = (sigma_B * 1000).to(self.dtype)
        texts = conditioning.texts, conditioning.second.texts
        rows = zip(given.split(1), times_B.split(1), *texts, strict=True)
        return as_tokens(torch.cat([self._alone(*row) for row in rows]))

    def _alone(
        self, given_1CThw: torch.Tensor, time_1: torch.Tensor, said_LE: torch.Tensor, spelled_LE: torch.Tensor
    ) -> torch.Tensor:
        config: Any = self.transformer.config
        said_1LE, spelled_1LE = said_LE[None].to(self.dtype), spelled_LE[None].to(self.dtype)
        return self.transformer(
            hidden_states=given_1CThw,
            timestep=time_1,
            encoder_hidden_states=said_1LE,
            encoder_attention_mask=said_1LE.new_ones(said_1LE.shape[:2]),
            encoder_hidden_states_2=spelled_1LE,
            encoder_attention_mask_2=spelled_1LE.new_ones(spelled_1LE.shape[:2]),
            image_embeds=said_1LE.new_zeros(1, 0, config["image_embed_dim"]),
            return_dict=False,
        )[0]
