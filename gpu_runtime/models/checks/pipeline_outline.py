"""The outline of a pipeline's model, without its weights: enough to refuse what cannot work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gpu_runtime.models.checks.memory_need import GIB, MemoryNeed, WorkNeed, refuse_too_large
from gpu_runtime.models.families.compiled_blocks import refuse_missing_compiler
from gpu_runtime.models.families.pipeline_model import PipelineModel, choose_attention, dtype_on
from gpu_runtime.models.files.pipeline_parts import empty_transformer, load_scheduler, load_tokenizers
from storage.config.model import ModelConfig
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError

_FLASH_KERNELS = ("flash", "_native_flash")


class PipelineOutline:
    """A model's files, sizes, tokenizers and layers.

    Args:
        device: kind of device that it will run on.
        frames: frames per clip; None if it makes images.

    Attributes:
        folder: its files, which are complete.
        transformer: its layers, on the meta device.
        height, width: size of an image, in pixels.

    Raises:
        ModelError: if files are missing, cut off, or those of another model.
        ConfigurationError: if the model cannot work with a setting.
    """

    def __init__(
        self,
        family: type[PipelineModel],
        settings: ModelConfig,
        device: torch.device,
        frames: int | None = None,
    ) -> None:
        self.family = family
        self.folder = family.folder(settings)
        self._settings, self._device, self._frames = settings, device, frames
        # First, as the next checks read sizes from the configurations.
        dtype = dtype_on(settings, device)
        self.transformer: torch.nn.Module = family.built(
            self.folder, settings, lambda name: empty_transformer(family, self.folder, dtype, name)
        )
        family.check_size(self.folder, settings)
        family.check_settings(self.folder, settings)
        if family.MASKED and settings.attention in _FLASH_KERNELS:
            raise ConfigurationError(
                f"model.attention is {settings.attention}, which supports no mask, but {settings.family} "
                "masks its text; use native"
            )
        processors = (getattr(module, "processor", None) for module in self.transformer.modules())
        has_choice = any(hasattr(processor, "_attention_backend") for processor in processors)
        if settings.attention in _FLASH_KERNELS and not has_choice:
            raise ConfigurationError(
                f"model.attention is {settings.attention}, but {settings.family} always leaves the choice "
                "of an attention kernel to torch; use auto"
            )
        if device.type == "cuda" and dtype == torch.float32 and settings.attention in _FLASH_KERNELS:
            raise ConfigurationError(
                f"model.attention is {settings.attention}, which computes only in 16 bits, but model.dtype "
                "is float32; use native, or set model.dtype=bfloat16"
            )
        load_scheduler(self.folder, family.SCHEDULER)
        self._tokenizers = load_tokenizers(self.folder)
        self._text_length = settings.text_length or family.TEXT_LENGTH
        family.refuse_long_negative(self._tokenizers, settings)

    def check_prompts(self, prompts: Sequence[str]) -> None:
        """Refuse a prompt that is too long.

        Raises:
            ConfigurationError: if so; with the prompt.
        """
        for prompt in prompts:
            self.family.refuse_long(self._tokenizers, prompt, self._settings)

    def check_machine(self, config: RunConfig | None = None, keeps_reference: bool = False) -> None:
        """Refuse a model if this machine lacks an attention kernel, a compiler or memory for it.

        Args:
            config: settings of the run whose workers share this machine; None for one that only generates.
            keeps_reference: True if training needs the reference policy.

        Raises:
            ConfigurationError: if so; with what is needed and what is available.
        """
        choose_attention(self.transformer, self._settings.attention)
        if self._settings.compile:
            refuse_missing_compiler(self._device)
        models, trainers, work = 1, 0, WorkNeed()
        if config is not None:
            settings = config.runtime
            models = settings.least_workers + settings.standby_workers
            trainers = settings.trainer_workers
            work = self.work_of(config, keeps_reference)
        refuse_too_large(self._need(work), self._device, models, trainers)

    def memory_in_words(self, config: RunConfig, keeps_reference: bool) -> str:
        """Describe the least memory that a run needs on a device."""
        need = self._need(self.work_of(config, keeps_reference))
        training, generating = need.training(config.runtime.trainer_workers), need.generating()
        return (
            f"a device that trains needs at least {sum(training.values()) / GIB:.1f} GiB, one that generates "
            f"{sum(generating.values()) / GIB:.1f}"
        )

    def work_of(self, config: RunConfig, keeps_reference: bool) -> WorkNeed:
        """Return the least memory that a run's training and generating need beside the weights."""
        evaluated = self.family.image_tokens(self.folder.config("vae"), config.evaluated_model)
        image_tokens, _ = self.sequence_lengths()
        one_by_one = self.family.CUTS_PADDING
        return WorkNeed.of(self.transformer, image_tokens, config, keeps_reference, evaluated, one_by_one)

    def _need(self, work: WorkNeed) -> MemoryNeed:
        """Return the least memory for the weights in the files, in their precision here, and for work."""
        folder, settings = self.folder, self._settings
        size = dtype_on(settings, self._device).itemsize
        return MemoryNeed(
            sum(folder.parameters(part) for part in folder.parts if part.startswith("transformer")) * size,
            folder.parameters("vae") * torch.float32.itemsize,
            sum(folder.parameters(part) for part in self.family.ENCODERS) * size,
            # On the CPU there is no other memory to keep them in.
            settings.encoders == "offload" and self._device.type == "cuda",
            work,
        )

    def sequence_lengths(self) -> tuple[int, int]:
        """Return the image and text tokens of a sample, from the parts' configurations."""
        image_tokens = self.family.image_tokens(self.folder.config("vae"), self._settings)
        return image_tokens, self.family.text_tokens(self._tokenizers, self._text_length, self._settings)

    def text_length_for(self, degree: int) -> int | None:
        """Return the next `model.text_length` whose text tokens divide by a degree; None if none does."""
        for length in range(self._text_length, self._text_length + degree):
            if self.family.text_tokens(self._tokenizers, length, self._settings) % degree == 0:
                return length
        return None

    def blank_image(self) -> np.ndarray:
        """Return a grey image or clip of the size that the model makes, uint8, (H, W, 3) or (F, H, W, 3)."""
        frames = () if self._frames is None else (self._frames,)
        return np.full((*frames, *self._settings.size, 3), 127, np.uint8)
