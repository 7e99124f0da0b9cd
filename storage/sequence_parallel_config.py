"""The settings of sequence parallelism: how many devices share one image."""

from __future__ import annotations

from pydantic import Field

from storage.config_section import Section

MOST_DEGREE = 64


class SequenceParallelConfig(Section):
    """How many devices of one instance share each image, by kind of request.

    At 1, everywhere, devices work alone and nothing of this is started. Above it, devices of an instance
    form groups of that size; what is left over forms smaller ones, down to a device that works alone.
    Drafts are always made by one device each.
    """

    rollout: int = Field(default=1, ge=1, le=MOST_DEGREE)
    """Devices that share an image in a rollout. The model's attention heads and image tokens must divide by
    it, which is checked before anything starts."""

    evaluate: int = Field(default=1, ge=1, le=MOST_DEGREE)
    """Devices that share an image in an evaluation."""

    @property
    def largest(self) -> int:
        """The largest degree of any kind of request."""
        return max(self.rollout, self.evaluate)
