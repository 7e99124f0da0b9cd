"""Longer prompt files for training, drawn by the generators of the built-in ones."""

from __future__ import annotations

from pathlib import Path

from gpu_runtime.prompt_sets.geneval import as_lines, training_rows
from gpu_runtime.prompt_sets.signs import sign_lines
from storage.errors import PromptFileError, quoted

_SUFFIXES = {"geneval": ".jsonl", "signs": ".txt"}


def draw_prompts(kind: str, count: int, seed: int, file: Path) -> str:
    """Return the content of a file of training prompts; it shares none with the built-in held-out file.

    Args:
        file: the file to write; its suffix gives the format.

    Raises:
        PromptFileError: an unknown kind, an unknown suffix, or no prompts.
    """
    if kind not in _SUFFIXES:
        raise PromptFileError(f"no prompts of kind {quoted(kind)}; there are {', '.join(_SUFFIXES)}")
    suffix = _SUFFIXES[kind]
    if file.suffix != suffix:
        raise PromptFileError(f"{file}: suffix {quoted(file.suffix)}; prompts of {kind} need {suffix}")
    if kind == "geneval":
        return as_lines(training_rows(count, seed))
    return "".join(f"{line}\n" for line in sign_lines(count, held_out=False, seed=seed))
