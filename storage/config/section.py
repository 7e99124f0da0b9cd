"""The base of all sections of the settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from storage.processes import without_collections
from storage.text import NOT_TEXT, is_text

LONGEST_S = 31 * 86_400.0
"""The largest time limit: timers refuse huge numbers, and no wait needs them."""

LARGEST_COUNT = 2**31 - 1
"""The largest count without a lower limit, set by the tables' columns."""

OptionValues = dict[str, Any]
"""A plug-in's options as given; the plug-in declares and reads them."""


class _ReadUndisturbed(type(BaseModel)):
    """Creates sections with garbage collection off while their docstrings are read.

    Up to Python 3.11.7, reading source fails if a collection lets another thread read source too
    (python/cpython#106905).
    """

    def __new__(cls, *arguments: Any, **options: Any) -> type:
        with without_collections():
            return super().__new__(cls, *arguments, **options)


class Section(BaseModel, metaclass=_ReadUndisturbed):
    """Base of all sections: frozen, refuses unknown keys, field docstrings become descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_other_kinds(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse what pydantic silently accepts: `true` as the number 1, text that is not Unicode."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return value  # its own fields are checked
        if (
            kind != OptionValues
            and isinstance(value, Mapping)
            and any(isinstance(inner, bool) for inner in value.values())
        ):
            raise PydanticKnownError("float_type")
        if isinstance(value, bool) and kind in (int, float, int | None, float | None):
            raise PydanticKnownError("int_type" if kind in (int, int | None) else "float_type")
        if not _is_text(value):
            raise PydanticCustomError("not_text", NOT_TEXT)
        return value

    def contradictions(self) -> Iterator[str]:
        """Yield why individually valid settings conflict; the first reason is the refusal."""
        yield from ()

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        for reason in self.contradictions():
            raise ValueError(reason)
        return self


def integer_or(least: int, most: int, words: Mapping[str, str]) -> BeforeValidator:
    """Return the annotation of a setting: a whole number within bounds, or one of some words.

    Args:
        words: meaning of each word, which follows it in a message.
    """

    def read(value: object) -> object:
        if isinstance(value, str) and value in words:
            return value
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            others = ", or ".join(f"{word}{meaning}" for word, meaning in words.items())
            reason = f"give a whole number from {least} to {most:,}, or {others}"
            raise PydanticCustomError("number_or_word", "{reason}", {"reason": reason})
        return value

    word: Any = Literal[tuple(words)]
    return BeforeValidator(read, json_schema_input_type=Annotated[int, Field(ge=least, le=most)] | word)


def _is_text(value: Any) -> bool:
    if isinstance(value, str):
        return is_text(value)
    if isinstance(value, Mapping):
        return all(_is_text(inner) for pair in value.items() for inner in pair)
    return not isinstance(value, (list, tuple)) or all(_is_text(inner) for inner in value)
