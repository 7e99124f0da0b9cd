"""Wan 2.2, text to video: the dense 5B, or the A14B with an expert for high and one for low noise.

Its VAE decodes one latent frame at a time, so that only the pixels grow with a clip's length. Published
folders come with the solver UniPC, whose noise levels are used: sampling here is first-order. Both experts
have the same guidance.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py; T latent frames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from transformers import UMT5EncoderModel

from gpu_runtime.models.families.pipeline_model import PipelineModel, as_tokens, unmasked, whole_times
from gpu_runtime.models.family_options import chosen_experts
from gpu_runtime.models.files.pipeline_folder import PartKind, PipelineFolder
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig
from storage.errors import ConfigurationError, ModelError

HIGH, LOW = "transformer", "transformer_2"
"""The experts' folders in a pipeline, and their names here."""


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
        return prompt_clean(prompt)

    @classmethod
    def folder(cls, settings: ModelConfig) -> PipelineFolder:
        """Return the files of a model, including a second transformer's if it has one."""
        found = super().folder(settings)
        boundary, second = found.index.get("boundary_ratio"), found.index.get(LOW) or (None,)
        if boundary is None and second[-1] is None:
            return found
        if boundary is None or second[-1] is None:
            raise ModelError(
                f"{settings.path} has only one of transformer_2 and boundary_ratio in its model_index.json; "
                "download it again, whole"
            )
        parts: dict[str, PartKind] = {**cls.part_kinds(), LOW: "diffusers"}
        return PipelineFolder.find(settings.path, cls.PIPELINE.__name__, parts)

    @classmethod
    def check_settings(cls, folder: PipelineFolder, settings: ModelConfig) -> None:
        """Refuse an expert that the model lacks, and one adapter for two experts."""
        super().check_settings(folder, settings)
        chosen = chosen_experts(settings)
        if LOW not in folder.parts and chosen != "both":
            raise ConfigurationError(
                f"model.options.experts is {chosen}, but {settings.path} has one transformer; leave it out"
            )
        if LOW in folder.parts and settings.adapter:
            raise ConfigurationError(
                "model.adapter is one LoRA, and this model has two transformers; leave it out, or name the "
                "dense model, Wan-AI/Wan2.2-TI2V-5B-Diffusers"
            )

    @classmethod
    def built(cls, folder: PipelineFolder, settings: ModelConfig, build: Callable[[str], Any]) -> Any:
        """Build the transformer, or both experts."""
        high = build(HIGH)
        if LOW not in folder.parts:
            return high
        return TwoExperts(high, build(LOW), 1000 * folder.index["boundary_ratio"], chosen_experts(settings))

    @classmethod
    def latent_side(cls, vae: Mapping[str, Any]) -> int:
        """Return the side of a latent pixel, in pixels of a frame: 8 for Wan 2.1's VAE, as in the A14B."""
        return vae.get("scale_factor_spatial", 8)

    @classmethod
    def frame_scale(cls, vae: Mapping[str, Any]) -> int:
        """Return the frames per latent frame."""
        return vae.get(cls.FRAME_SCALE, 4)

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


def _for_trained(name: str) -> Any:
    """Return a method that calls the trained experts' methods of a name."""

    def call(self: TwoExperts, *values: Any) -> None:
        for expert in self.children():
            getattr(expert, name)(*values)

    return call


class TwoExperts(torch.nn.Module):
    """Two transformers of one model as one module, passing each sample to the expert for its noise level.

    A frozen expert is no submodule: whatever lists weights or layers to train does not see it.

    Args:
        high: expert from the boundary up.
        low: expert below it.
        boundary: timestep, of 1000, that divides the two.
        trained: `both`, `high` or `low`.

    Attributes:
        experts: both of them, trained or not.
    """

    def __init__(self, high: Any, low: Any, boundary: float, trained: str) -> None:
        super().__init__()
        self.experts, self._boundary = (high, low), boundary
        self.config, self._no_split_modules = high.config, high._no_split_modules
        for name, expert, choice in ((HIGH, high, "high"), (LOW, low, "low")):
            if trained in ("both", choice):
                setattr(self, name, expert)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of most weights."""
        return self.experts[0].dtype

    @property
    def blocks(self) -> Any:
        """Blocks of one expert, which a sample passes through."""
        return next(self.children()).blocks

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, **more: Any
    ) -> tuple[torch.Tensor]:
        """Return each sample's prediction by its expert; further arguments are those of Wan's transformer."""
        is_high = (timestep >= self._boundary)[:, None, None, None, None]
        # Each expert computes all samples of a mixed batch: with fewer of them, bits would change.
        found = [
            expert(hidden_states, timestep, **more)[0]
            # Processes that divide its weights must all compute every batch, as others may need their part.
            if chosen.any() or hasattr(next(expert.blocks.parameters()), "full_tensor")
            else torch.zeros_like(hidden_states)
            for expert, chosen in zip(self.experts, (is_high, ~is_high), strict=True)
        ]
        return (torch.where(is_high, *found),)

    add_adapter, enable_adapters, disable_adapters, enable_gradient_checkpointing = map(
        _for_trained, ("add_adapter", "enable_adapters", "disable_adapters", "enable_gradient_checkpointing")
    )

    def set_attention_backend(self, name: str) -> None:
        """Set the attention kernel of both experts."""
        for expert in self.experts:
            expert.set_attention_backend(name)

    def save_pretrained(self, folder: str) -> None:
        """Save the trained experts, each into a folder of its name at or beside `folder`."""
        for name, expert in self.named_children():
            expert.save_pretrained(str(Path(folder).with_name(name)))  # pyright: ignore[reportCallIssue]

    def _apply(self, fn: Any, recurse: bool = True) -> TwoExperts:
        for expert in self.experts:
            expert._apply(fn, recurse)
        return self
