"""Model settings: family, source, precision and size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field

from storage.config.section import OptionValues, Section

OWN_SIDE = 512
"""Default height and width in pixels of the families with a pipeline."""

OWN_FRAMES = 17
"""Default number of frames in a clip."""

EMBEDDED_PREFIX = "embedded:"
"""Prefix of the paths of built-in models."""


class ModelConfig(Section):
    """The diffusion transformer to train, and where it runs."""

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
    """Reference policy of the KL in a run that starts from `adapter`: the model without or with it."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the tensors; `auto` is CUDA if the worker has a GPU."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of transformer and text encoders; `auto` is bfloat16 on CUDA and float32 on the CPU. Images
    are decoded in float32; embedded models are always float32."""

    # diffusers' `_flash_3` and `sage` return no gradient, and torch refuses `_native_cudnn` with
    # deterministic kernels, which workers on a GPU require.
    attention: Literal["auto", "native", "_native_flash", "flash"] = "auto"
    """Attention kernel, by its name in diffusers; `auto` is diffusers' choice. Training with `flash` is
    reproducible only up to rounding."""

    compile: bool = False
    """Compile the transformer's blocks (torch.compile): a worker's first calls may take minutes, later ones
    less. Results differ by rounding."""

    height: int = Field(default=0, ge=0, le=4096)
    """Height of an image in pixels; 0 is the embedded model's, or 512 for other families."""

    width: int = Field(default=0, ge=0, le=4096)
    """Width of an image in pixels; 0 as for the height."""

    frames: int = Field(default=0, ge=0, le=1024)
    """Frames of a clip, 1 and a multiple of 4; 0 is 17."""

    guidance: float = Field(default=1.0, ge=1, le=30)
    """Guidance scale: classifier-free, where 1 is off and more costs a second forward pass; for `flux` and
    `flux-kontext` an input of the transformer."""

    negative_prompt: str = ""
    """Negative prompt of classifier-free guidance; Qwen-Image's example uses one space."""

    text_length: int = Field(default=0, ge=0, le=1024)
    """Text tokens that prompts are padded to; 0 is the family's default (docs/reference/models.md). Longer
    prompts are refused. An encoder's tokens for a source image are extra."""

    encoders: Literal["resident", "offload"] = "resident"
    """Where text encoders stay between prompts: on the device, or in host memory (`offload`)."""

    options: OptionValues = Field(default={})
    """Options declared by the family (docs/reference/models.md)."""

    def contradictions(self) -> Iterator[str]:
        """Yield why these settings conflict."""
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
        """Return the settings with absolute paths; names in the Hub cache stay unchanged."""
        folder = os.path.expanduser(self.path)
        is_path = os.path.isdir(folder) or self.path.startswith(("~", "."))
        adapter = self.adapter and os.path.abspath(os.path.expanduser(self.adapter))
        path = os.path.abspath(folder) if is_path else self.path
        return self.model_copy(update={"path": path, "adapter": adapter})
