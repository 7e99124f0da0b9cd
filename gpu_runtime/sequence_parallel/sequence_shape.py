"""The sizes of a model and a resolution that decide how many devices can share a sequence. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from storage.errors import ConfigurationError


@dataclass(frozen=True)
class SequenceShape:
    """One sequence: image tokens and text tokens that attend to each other.

    Ulysses gives every member an equal part of the tokens outside attention and an equal part of
    the heads inside, so all three must divide by the degree. Text may be padded if a mask hides
    the padding; image tokens may not, as no family masks them.

    Attributes:
        heads: number of attention heads.
        image_tokens: number of image tokens S.
        text_tokens: number of text tokens L.
        text_has_mask: True if the family masks text, so that padding it changes nothing.
    """

    heads: int
    image_tokens: int
    text_tokens: int
    text_has_mask: bool

    def __post_init__(self) -> None:
        for name in ("heads", "image_tokens", "text_tokens"):
            if getattr(self, name) < 1:
                raise ConfigurationError(
                    f"SequenceShape.{name} is {getattr(self, name)}; it must be at least 1"
                )

    def refusal(self, degree: int) -> str | None:
        """Return the reason why `degree` devices cannot share this sequence; None if they can."""
        if degree < 1:
            return f"the degree is {degree}; it must be at least 1"
        parts = [(self.heads, "attention heads"), (self.image_tokens, "image tokens")]
        if not self.text_has_mask:
            parts.append((self.text_tokens, "text tokens (no mask could hide padding)"))
        for count, what in parts:
            if count % degree:
                good = ", ".join(map(str, self.degrees(degree)))
                return f"{count} {what} do not divide by degree {degree}; below it, {good} would do"
        return None

    def check(self, degree: int) -> None:
        """Refuse a degree before anything starts.

        Raises:
            ConfigurationError: if the sequence cannot be shared by that many devices.
        """
        reason = self.refusal(degree)
        if reason is not None:
            raise ConfigurationError(f"sequence parallelism: {reason}; choose another degree or resolution")

    def degrees(self, up_to: int) -> tuple[int, ...]:
        """Return the degrees from 1 to `up_to` by which the sequence can be shared."""
        return tuple(degree for degree in range(1, up_to + 1) if self._divides(degree))

    def only_text_length_prevents(self, degree: int) -> bool:
        """Return True if `degree` devices could share the sequence only if its text had another length."""
        others = self.heads % degree == 0 and self.image_tokens % degree == 0
        return others and not self._divides(degree)

    def padded_text(self, degree: int) -> int:
        """Return the number of text tokens after padding to a multiple of the degree."""
        return -(-self.text_tokens // degree) * degree

    def _divides(self, degree: int) -> bool:
        counts: Iterable[int] = (self.heads, self.image_tokens)
        if not self.text_has_mask:
            counts = (*counts, self.text_tokens)
        return all(count % degree == 0 for count in counts)
