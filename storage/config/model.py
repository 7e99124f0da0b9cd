"""The settings of the model: which one, from where, in which precision, at which size."""

from __future__ import annotations

import os
from typing import Literal, Self

from pydantic import Field, model_validator

from storage.config.section import Section


class ModelConfig(Section):
    """Which diffusion transformer is trained, and where it runs."""

    family: Literal["embedded", "qwen-image", "sd3.5", "flux", "z-image"] = "embedded"
    """Model family; one file each in gpu_runtime/models."""

    path: str = "embedded:glyphs"
    """A folder with the model's files, or `embedded:NAME` for one that the project carries. The other
    families also take a name in the hub's cache of the machine, as in Qwen/Qwen-Image."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where tensors live; `auto` takes CUDA when the worker is given a GPU."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of transformer and text encoders; `auto` is bfloat16 on CUDA and float32 on the CPU. Images
    are decoded in float32. The embedded models are always float32."""

    attention: Literal["auto", "native", "_native_cudnn", "_native_flash", "flash", "_flash_3", "sage"] = (
        "auto"
    )
    """Attention kernel, by diffusers' names; `auto` leaves diffusers' choice."""

    compile: bool = False
    """Whether the transformer's blocks are compiled (torch.compile): a worker's first calls of each kind take
    up to minutes, later ones less. What it computes differs by rounding from what is not compiled."""

    height: int = Field(default=0, ge=0, le=4096)
    """Height of an image in pixels; 0 is the embedded model's own, and 512 of the other families."""

    width: int = Field(default=0, ge=0, le=4096)
    """Width of an image in pixels; 0 as for the height."""

    guidance: float = Field(default=1.0, ge=1, le=30)
    """Strength of guidance by the prompt: classifier-free for `qwen-image`, `sd3.5` and `z-image`, where 1
    switches it off and anything above costs a second forward pass; for `flux` a number that the
    transformer is told."""

    negative_prompt: str = ""
    """What classifier-free guidance leads away from; Qwen-Image's own example is one space."""

    text_length: int = Field(default=0, ge=0, le=1024)
    """Text tokens of a prompt, to which all are padded; 0 is the family's own (docs/models.md). A longer
    prompt is refused."""

    encoders: Literal["resident", "offload"] = "resident"
    """Where text encoders stay between prompts: `resident` on the device, or `offload` in the machine's
    memory. A prompt is encoded once by each worker."""

    @model_validator(mode="after")
    def _embedded_is_as_it_is(self) -> Self:
        if self.family != "embedded":
            return self
        defaults = type(self).model_fields
        changed = [
            f"model.{name}={getattr(self, name)!r}"
            for name in sorted(defaults.keys() - {"family", "path", "device"})
            if getattr(self, name) != defaults[name].default
        ]
        if changed:
            raise ValueError(
                f"{', '.join(changed)} is set, but model.family is embedded, whose models have a size and a "
                "precision of their own; leave it out, or set model.family"
            )
        return self

    @model_validator(mode="after")
    def _family_has_a_path(self) -> Self:
        if self.family != "embedded" and self.path.startswith("embedded:"):
            raise ValueError(
                f"model.path is {self.path!r} with model.family={self.family}; name a folder or a model in "
                "the hub's cache, as in model.path=Qwen/Qwen-Image"
            )
        return self

    def with_absolute_folder(self) -> Self:
        """The folder as it is seen from here; names of the hub's cache stay as they are."""
        folder = os.path.expanduser(self.path)
        if self.path.startswith("embedded:") or (self.family != "embedded" and not os.path.isdir(folder)):
            return self
        return self.model_copy(update={"path": os.path.abspath(folder)})
