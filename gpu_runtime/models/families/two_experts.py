"""Two transformers of one model, for high and for low noise, as one module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

HIGH, LOW = "transformer", "transformer_2"
"""Folders of the two in a pipeline, and their names here."""


def _for_trained(name: str) -> Any:
    """Return a method that calls those of a name of the trained experts."""

    def call(self: TwoExperts, *values: Any) -> None:
        for expert in self.children():
            getattr(expert, name)(*values)

    return call


class TwoExperts(torch.nn.Module):
    """A transformer that passes each sample to the expert of its noise level.

    A frozen expert is no submodule: whatever lists weights or layers to train does not see it.

    Args:
        high: expert from the boundary up.
        low: expert below it.
        boundary: time, of 1000, at which the first one ends.
        trained: `both`, `high` or `low`.
    """

    def __init__(self, high: Any, low: Any, boundary: float, trained: str) -> None:
        super().__init__()
        self._pair, self._boundary = (high, low), boundary
        self.config, self._no_split_modules = high.config, high._no_split_modules
        for name, expert, choice in ((HIGH, high, "high"), (LOW, low, "low")):
            if trained in ("both", choice):
                setattr(self, name, expert)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of most weights."""
        return self._pair[0].dtype

    @property
    def blocks(self) -> Any:
        """Blocks of one expert, which a sample passes."""
        return next(self.children()).blocks

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, **more: Any
    ) -> tuple[torch.Tensor]:
        """Return what each sample's expert predicts; further arguments are those of a transformer of Wan."""
        is_high = (timestep >= self._boundary)[:, None, None, None, None]
        # Of a mixed batch each expert computes all samples: with fewer of them, others' bits would change.
        found = [
            expert(hidden_states, timestep, **more)[0] if chosen.any() else torch.zeros_like(hidden_states)
            for expert, chosen in zip(self._pair, (is_high, ~is_high), strict=True)
        ]
        return (torch.where(is_high, *found),)

    add_adapter, enable_adapters, disable_adapters, enable_gradient_checkpointing = map(
        _for_trained, ("add_adapter", "enable_adapters", "disable_adapters", "enable_gradient_checkpointing")
    )

    def set_attention_backend(self, name: str) -> None:
        """Choose an attention kernel for both."""
        for expert in self._pair:
            expert.set_attention_backend(name)

    def save_pretrained(self, folder: str) -> None:
        """Save the trained experts, each into the folder of its name beside or at `folder`."""
        for name, expert in self.named_children():
            expert.save_pretrained(str(Path(folder).with_name(name)))  # pyright: ignore[reportCallIssue]

    def _apply(self, fn: Any, recurse: bool = True) -> TwoExperts:
        for expert in self._pair:
            expert._apply(fn, recurse)
        return self
