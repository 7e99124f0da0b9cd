"""The settings of sequence parallelism: how many devices share one image."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from storage.config.section import Section, integer_or

MOST_DEGREE = 64

AUTO = 0
"""A degree that measured times choose; settings, given or stored, spell it `auto`."""

_AUTO_AS_TEXT = "auto"


Degree = Annotated[
    int,
    BeforeValidator(lambda degree: AUTO if degree == _AUTO_AS_TEXT else degree),
    integer_or(1, MOST_DEGREE, {_AUTO_AS_TEXT: " to let measured times choose how many share an image"}),
    PlainSerializer(lambda degree: _AUTO_AS_TEXT if degree == AUTO else degree),
]
"""Devices that share an image, or `AUTO`."""


class SequenceParallelConfig(Section):
    """How many devices of one instance share each image, by kind of request.

    At 1, devices work alone. Above 1, an instance's devices form groups of that size; the rest
    form smaller ones. With `auto`, measured times of a denoising step decide.
    """

    rollout: Degree = 1
    """Devices that share an image in a rollout. It must divide the model's attention heads and image
    tokens; `auto` takes only such numbers. Runs with `auto` repeat up to rounding, not to the bit."""

    evaluate: Degree = 1
    """Devices that share an image in an evaluation."""

    explore: int = Field(default=1, ge=1, le=MOST_DEGREE)
    """Devices that share a draft. 1 makes the most drafts; use more if the model needs it, or if
    training windows are short. Drafts with the rollout's degree have the rollout's bits."""

    @property
    def by_kind(self) -> dict[str, int]:
        """The degree of each kind of request."""
        return {"rollout": self.rollout, "evaluate": self.evaluate, "explore": self.explore}

    @property
    def largest(self) -> int:
        """The largest degree that any kind of request may have."""
        return max(MOST_DEGREE if degree == AUTO else degree for degree in self.by_kind.values())

    @property
    def is_measured(self) -> bool:
        """True if measured times choose any degree, so runs repeat only up to rounding."""
        return AUTO in self.by_kind.values()
