"""The sizes of a model and a resolution that decide how many devices can share a sequence. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import ConfigurationError

_TEXT = "text tokens (no mask could hide padding)"


@dataclass(frozen=True)
class SequenceShape:
    """One sequence: image tokens and text tokens that attend to each other.

    Ulysses gives every member an equal part of the tokens outside attention and an equal part of
    the heads inside, so all three must divide by the degree. Text may be padded if a mask hides
    the padding, or stay whole if image tokens only look at it; image tokens are never padded, as no
    family masks them.

    Attributes:
        image_tokens: number of image tokens S.
        text_tokens: number of text tokens L.
        any_text: True if text of any length can be shared: its padding is masked, or it stays whole.
    """

    heads: int
    image_tokens: int
    text_tokens: int
    any_text: bool

    def __post_init__(self) -> None:
        for name in ("heads", "image_tokens", "text_tokens"):
            if getattr(self, name) < 1:
                raise ConfigurationError(
                    f"SequenceShape.{name} is {getattr(self, name)}; it must be at least 1"
                )

    def check(self, degree: int) -> None:
        """Refuse a degree before anything starts.

        Raises:
            ConfigurationError: if the sequence cannot be shared by that many devices.
        """
        if degree < 1:
            reason = f"the degree is {degree}; it must be at least 1"
        else:
            undivided = [f"{count} {what}" for what, count in self._parts().items() if count % degree]
            if not undivided:
                return
            good = ", ".join(map(str, self.degrees(degree)))
            reason = f"{undivided[0]} do not divide by degree {degree}; below it, {good} would do"
        raise ConfigurationError(f"sequence parallelism: {reason}; choose another degree or resolution")

    def degrees(self, up_to: int) -> tuple[int, ...]:
        """Return the degrees from 1 to `up_to` by which the sequence can be shared."""
        counts = self._parts().values()
        return tuple(degree for degree in range(1, up_to + 1) if not any(count % degree for count in counts))

    def only_text_length_prevents(self, degree: int) -> bool:
        """Return True if `degree` devices could share the sequence only if its text had another length."""
        undivided = [what for what, count in self._parts().items() if count % degree]
        return undivided == [_TEXT]

    def _parts(self) -> dict[str, int]:
        """Return what has to divide by the degree, in words, and how many of each there are."""
        parts = {"attention heads": self.heads, "image tokens": self.image_tokens}
        return parts if self.any_text else parts | {_TEXT: self.text_tokens}
