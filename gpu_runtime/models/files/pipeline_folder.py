"""A diffusers pipeline's files, checked for completeness. Nothing is downloaded."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from safetensors import SafetensorError, safe_open

from gpu_runtime.models.files.hub_folder import find_folder
from storage.errors import ModelError

PartKind = Literal["diffusers", "transformers", "tokenizer", "processor", "scheduler"]
"""Kind of a part by the library that wrote its folder, which decides the names of its files."""

INDEX = "model_index.json"
_WEIGHTS = {"diffusers": "diffusion_pytorch_model", "transformers": "model"}
_CONFIGS = {
    "tokenizer": "tokenizer_config.json",
    "processor": "preprocessor_config.json",
    "scheduler": "scheduler_config.json",
}
_LONGEST_HEADER = 100 * 2**20


@dataclass(frozen=True)
class PipelineFolder:
    """A pipeline in the hub's layout, with a folder per part.

    Attributes:
        parts: needed parts and their kinds.
    """

    path: Path
    parts: Mapping[str, PartKind]

    @classmethod
    def find(cls, name: str, pipeline: str, parts: Mapping[str, PartKind]) -> Self:
        """Find a folder, or a name in the hub's cache, and check that its files are complete.

        Args:
            name: `model.path`.
            pipeline: class that `model_index.json` must name.

        Raises:
            ModelError: if there is none, it is another pipeline, or files are missing or cut off.
        """
        folder = find_folder("model.path", name)
        found = cls(folder, parts)
        if not (folder / INDEX).is_file():
            raise ModelError(
                f"model.path = {name!r}: {folder} has no {INDEX}; name the folder of a whole {pipeline}, "
                "as diffusers saves it"
            )
        if (named := found.index.get("_class_name")) != pipeline:
            raise ModelError(
                f"model.path = {name!r} is a {named}, not a {pipeline}; set model.family to the model's "
                "family, or name another model"
            )
        found._refuse_incomplete(name)
        for part, kind in parts.items():
            for file in found.weights(part):
                tensor_shapes(file)
            if kind == "tokenizer":
                # For a damaged file its library raises a bare `Exception`, without the file's name.
                for file in sorted((folder / part).glob("*.json")):
                    read_json(file)
        return found

    @property
    def index(self) -> dict[str, Any]:
        """The content of `model_index.json`: the library and the class of each part."""
        return read_json(self.path / INDEX)

    def config(self, part: str) -> dict[str, Any]:
        """Return the configuration of a part."""
        return read_json(self.path / part / _CONFIGS.get(self.parts[part], "config.json"))

    def weights(self, part: str) -> list[Path]:
        """Return a part's weight files; empty if it has no weights."""
        kind = self.parts[part]
        if kind not in _WEIGHTS:
            return []
        index = self.path / part / f"{_WEIGHTS[kind]}.safetensors.index.json"
        if not index.is_file():
            return [self.path / part / f"{_WEIGHTS[kind]}.safetensors"]
        named = read_json(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
            raise ModelError(f"{index} names no weight files; download the model again, whole")
        return [self.path / part / file for file in sorted(set(named.values()))]

    def parameters(self, part: str) -> int:
        """Return the number of parameters of a part, from the file headers alone."""
        files = self.weights(part)
        return sum(math.prod(shape) for file in files for shape in tensor_shapes(file).values())

    def _refuse_incomplete(self, name: str) -> None:
        needed: list[Path] = []
        for part, kind in self.parts.items():
            needed += [self.path / part / _CONFIGS.get(kind, "config.json"), *self.weights(part)]
        missing = [file.relative_to(self.path).as_posix() for file in needed if not file.is_file()]
        if missing:
            raise ModelError(
                f"model.path = {name!r}: {self.path} lacks {', '.join(missing)}; download the model again, "
                "whole"
            )


def pipeline_files(name: str) -> list[Path]:
    """Return the files that a pipeline is loaded from, in a fixed order, without importing diffusers.

    For a part with weights these are its configuration and the weights; for any other part, all its files.

    Args:
        name: `model.path`.

    Raises:
        ModelError: if there is no pipeline, or a part with weights lacks its configuration or some of them.
    """
    folder = find_folder("model.path", name)
    files = [folder / INDEX]
    for part, named in sorted(read_json(folder / INDEX).items()):
        # Settings are not lists; absent parts have no folder.
        if isinstance(named, list) and named and (folder / part).is_dir():
            here = sorted((folder / part).iterdir())
            weights = f"{_WEIGHTS.get(named[0])}.safetensors"
            if {file.name for file in here} & {weights, f"{weights}.index.json"}:
                pipeline = PipelineFolder(folder, {part: named[0]})
                pipeline._refuse_incomplete(name)
                files += [folder / part / "config.json", *pipeline.weights(part)]
            else:
                files += [file for file in here if file.is_file()]
    return files


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """Return the names and shapes of a safetensors file's tensors, without reading them.

    Raises:
        ModelError: if it is not such a file, or is truncated.
    """
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 0 < length <= _LONGEST_HEADER:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        shapes = {name: entry["shape"] for name, entry in header.items()}
        end = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (OSError, ValueError, AttributeError, LookupError, TypeError, RecursionError) as error:
        raise ModelError(f"{file} is not a safetensors file ({error}); download the model again") from error
    size = file.stat().st_size
    if size < end:
        raise ModelError(f"{file} has {size} bytes of {end}: it is cut off; download the model again, whole")
    try:
        with safe_open(file, framework="np"):  # checks that shapes, types and offsets agree
            return shapes
    except SafetensorError as error:
        raise ModelError(f"{file} is not a safetensors file ({error}); download the model again") from error


class _Settings(dict[str, Any]):
    """The content of a settings file; looking up a missing key is an error that names the file."""

    def __init__(self, file: Path, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._file = file

    def __missing__(self, key: str) -> Any:
        raise ModelError(f"{self._file} has no {key!r}; download the model again, whole")


def read_json(file: Path) -> dict[str, Any]:
    """Read the JSON object in a file; looking up a missing key in it raises a `ModelError`.

    Raises:
        ModelError: if the file does not hold one.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not JSON ({error}); download the model again, whole") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} is not a JSON object; download the model again, whole")
    return _Settings(file, value)
