"""JSON files that a person may write, read as a pydantic model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from storage.errors import ConfigurationError
from storage.text import read_text_file

M = TypeVar("M", bound=BaseModel)

_MOST_PROBLEMS = 5


def read_json_model(path: Path, kind: str, model: type[M], documented: str) -> M:
    """What a JSON file holds.

    Args:
        path: the file.
        kind: what it holds, in a word: a refusal begins with it and the path.
        model: what it is read as.
        documented: the document that says its form.

    Raises:
        ConfigurationError: no such file, no JSON, or a value is missing or out of range.
    """
    text = read_text_file(path, f"{kind} {path}", ConfigurationError)
    try:
        return model.model_validate(json.loads(text))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or kind}: {problem['msg']}"
            for problem in error.errors()[:_MOST_PROBLEMS]
        )
        raise ConfigurationError(f"{kind} {path}: {problems}; see {documented} for the form") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{kind} {path} is not JSON that can be read ({error})") from error
