"""Passes of the families that ask a GPU for nothing: each question waits for all that it has yet to compute.

torch's operations are watched on the CPU. Those whose result the host has to know, and those that put numbers
of Python's on the model's device, would wait for a GPU. diffusers' own are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_runtime.models import loading
from gpu_runtime.models.loading import load_model
from tests.pipeline_reference import encoded, family_config
from tests.tiny_pipelines import PIPELINES, Saved

_OURS, _DIFFUSERS = (str(Path(str(module.__file__)).parent) for module in (loading, diffusers))

_ASKING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::lift_fresh")


class Watched(TorchDispatchMode):
    """Notes the operations that wait for a device, with the line of ours that they are on."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        indices = args[1] if func.name().startswith("aten::index") and isinstance(args[1], list) else []
        by_mask = any(index is not None and index.dtype == torch.bool for index in indices)
        if func.name() in _ASKING or by_mask:
            self.note(func.name())
        return func(*args, **(kwargs or {}))

    def note(self, name: str) -> None:
        frame = sys._getframe(1)
        while not frame.f_code.co_filename.startswith((_DIFFUSERS, _OURS)):
            assert frame.f_back is not None
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(_OURS):
            self.waits.append(f"{name} at {frame.f_code.co_filename}:{frame.f_lineno}")


@contextmanager
def watched() -> Iterator[list[str]]:
    with Watched() as found:
        yield found.waits


@pytest.mark.parametrize("family", PIPELINES)
def test_no_pass_after_the_first_waits_for_the_one_before(saved: Saved, family: str):
    model = load_model(family_config(family, saved(family)).model)
    conditioning = encoded(model, [0, 1], family)
    latents, sigma = torch.zeros(2, *model.latent_shape), torch.tensor([0.9, 0.4])
    with torch.no_grad():
        first = model.velocity(latents, sigma, conditioning)
        with watched() as waits:
            second = model.velocity(latents, sigma, conditioning)
    assert waits == []
    assert torch.equal(first, second)


def test_what_would_wait_is_noticed(saved: Saved):
    model: Any = load_model(family_config("z-image", saved("z-image")).model)
    with watched() as waits:
        model.encode_prompts(["a sign"]).rows([0]).texts  # noqa: B018
    assert {wait.split(" at ")[0] for wait in waits} >= {"aten::lift_fresh", "aten::index.Tensor"}
