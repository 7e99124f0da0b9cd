"""The settings of the model: which one, from where, in which precision, at which size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field

from storage.config.section import OptionValues, Section

OWN_SIDE = 512
"""Height and width in pixels of the families with a pipeline, where none are set."""

OWN_FRAMES = 17
"""Frames of a clip, where none are set."""

EMBEDDED_PREFIX = "embedded:"
"""A path that begins so names a model that the project carries."""


class ModelConfig(Section):
    """Which diffusion transformer is trained, and where it runs."""

    family: str = Field(default="embedded", min_length=1)
    """`embedded`, `qwen-image`, `qwen-image-2.1`, `sd3.5`, `flux`, `flux2-klein`, `sana` or `z-image`; to
    edit images `qwen-image-edit`, `qwen-image-edit-plus` or `flux-kontext`; for clips `wan2.2` or
    `hunyuan-video-1.5`; or a plug-in, `package.module:Name` (docs/reference/models.md)."""

    path: str = "embedded:glyphs"
    """A folder with the model's files, or `embedded:NAME` for one in the project. Other
    families also take a name in the machine's Hub cache, such as Qwen/Qwen-Image."""

    adapter: str = ""
    """LoRA to start from: a folder or .safetensors file written by `spotlight export`, diffusers or
    peft. Rank and layers must match `adaptation`; its own alpha is used."""

    reference: Literal["base", "adapter"] = "base"
    """The KL's reference policy in a run that starts from `adapter`: the model without it, or with it."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where tensors live; `auto` takes CUDA when the worker is given a GPU."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of transformer and text encoders; `auto` is bfloat16 on CUDA and float32 on the CPU. Images
    are decoded in float32; embedded models are always float32."""

    # No gradient comes back through diffusers' `_flash_3` and `sage`, and torch refuses `_native_cudnn` where
    # kernels must be deterministic, as workers on a GPU require.
    attention: Literal["auto", "native", "_native_flash", "flash"] = "auto"
    """Attention kernel, by its name in diffusers; `auto` is diffusers' choice. Training with `flash` is
    reproducible only up to rounding."""

    compile: bool = False
    """Compile the transformer's blocks (torch.compile): a worker's first calls take up to minutes, later ones
    less. Results differ by rounding."""

    height: int = Field(default=0, ge=0, le=4096)
    """Height of an image in pixels; 0 is the embedded model's own, 512 for other families."""

    width: int = Field(default=0, ge=0, le=4096)
    """Width of an image in pixels; 0 as for the height."""

    frames: int = Field(default=0, ge=0, le=1024)
    """Frames of a clip, 1 and a multiple of 4; 0 is 17."""

    guidance: float = Field(default=1.0, ge=1, le=30)
    """Strength of guidance by the prompt: classifier-free, where 1 is off and more costs a second forward
    pass; for `flux` and `flux-kontext` a number that the transformer takes."""

    negative_prompt: str = ""
    """Prompt that classifier-free guidance leads away from; Qwen-Image's own example is one space."""

    text_length: int = Field(default=0, ge=0, le=1024)
    """Text tokens to which prompts are padded; 0 is the family's own (docs/reference/models.md). A longer
    prompt is refused. An encoder's tokens for a source image come on top."""

    encoders: Literal["resident", "offload"] = "resident"
    """Where text encoders stay between prompts: on the device, or in the machine's memory (`offload`)."""

    options: OptionValues = Field(default={})
    """Options that the family declares (docs/reference/models.md)."""

    def contradictions(self) -> Iterator[str]:
        """Yield why these settings cannot be together."""
        if self.reference == "adapter" and not self.adapter:
            yield "model.reference is adapter, but no model.adapter is named; name one, or set it to base"

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of an image in pixels, in a family with a pipeline."""
        return self.height or OWN_SIDE, self.width or OWN_SIDE

    @property
    def clip_frames(self) -> int:
        """Frames of a clip, in a family that makes clips."""
        return self.frames or OWN_FRAMES

    @property
    def key(self) -> str:
        """The model and its size, as profiles and learning curves name them; frames unless `OWN_FRAMES`."""
        if self.path.startswith(EMBEDDED_PREFIX):
            return self.path
        frames = "" if self.frames in (0, OWN_FRAMES) else f"x{self.frames}"
        height, width = self.size
        return f"{self.family} {width}x{height}{frames}"

    def with_absolute_paths(self) -> Self:
        """Return paths as seen from here; names in the hub's cache stay unchanged."""
        folder = os.path.expanduser(self.path)
        is_path = os.path.isdir(folder) or self.path.startswith(("~", "."))
        adapter = self.adapter and os.path.abspath(os.path.expanduser(self.adapter))
        path = os.path.abspath(folder) if is_path else self.path
        return self.model_copy(update={"path": path, "adapter": adapter})
