"""Adapters in the file formats of diffusers and peft. torch is imported where tensors are needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from gpu_runtime.models.files.pipeline_folder import read_json, tensor_shapes
from storage.config.run_config import AdaptationConfig
from storage.errors import ModelError, quoted

LORA_FILE = "pytorch_lora_weights.safetensors"
"""The file that diffusers' pipelines load."""

_PEFT_FILE, _PEFT_SETTINGS = "adapter_model.safetensors", "adapter_config.json"
_METADATA = "lora_adapter_metadata"
"""Metadata key under which diffusers writes the LoRA's settings into the file itself."""

_ADAPTER = ".default."
_PREFIXES = ("transformer.", "base_model.model.")
_OTHER_KINDS = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern")
"""peft settings that mean anything other than one rank and one scale for all layers."""


def write_lora(
    pipeline: Any, folder: Path, state: Mapping[str, np.ndarray], adaptation: AdaptationConfig
) -> Path:
    """Write adapters that `pipe.load_lora_weights(folder)` can load.

    The weights are multiplied by the scale alpha / rank, so that a loader without alpha gets the same
    model.

    Args:
        pipeline: pipeline class of diffusers, which knows the format.
        state: adapters by their names in the policy (`...lora_A.default.weight`), float32.

    Returns:
        The file. The adapters of a second transformer are in a file of the same name in `transformer_2/`.

    Raises:
        ModelError: if the state holds weights other than adapters.
    """
    import torch
    from peft import LoraConfig

    for part, target in (("transformer_2", folder / "transformer_2"), ("transformer", folder)):
        own = {name.removeprefix(f"{part}."): state[name] for name in state if name.startswith(f"{part}.")}
        if own:
            write_lora(pipeline, target, own, adaptation)
            state = {name: value for name, value in state.items() if not name.startswith(f"{part}.")}
    if not state:
        return folder / LORA_FILE
    scale = adaptation.alpha / adaptation.rank
    layers: dict[str, Any] = {}
    for name, value in state.items():
        if ".lora_A." not in name and ".lora_B." not in name:
            raise ModelError(f"{name} is not an adapter weight; export a run with adaptation.mode=lora")
        factor = scale if ".lora_B." in name else 1.0
        layers[name.replace(_ADAPTER, ".")] = torch.from_numpy(value * np.float32(factor)).contiguous()
    layout = LoraConfig(
        r=adaptation.rank, lora_alpha=adaptation.rank, target_modules=list(adaptation.targets)
    )
    pipeline.save_lora_weights(
        str(folder),
        transformer_lora_layers=layers,
        transformer_lora_adapter_metadata=layout.to_dict(),
    )
    return folder / LORA_FILE


def lora_files(path: str) -> list[Path]:
    """Return a LoRA's files: its weights and, if peft wrote them, its settings.

    Args:
        path: `model.adapter`: a safetensors file, or a folder with one that diffusers or peft wrote.

    Raises:
        ModelError: there is none.
    """
    given = Path(path)
    if not given.is_dir():
        if not given.is_file():
            raise _refusal(path, "there is no such file or folder", "name an exported folder")
        if given.name != _PEFT_FILE:
            return [given]
        settings = given.with_name(_PEFT_SETTINGS)
        if not settings.is_file():
            raise _refusal(path, f"peft's {_PEFT_SETTINGS}, with its alpha, is missing", "add it")
        return [given, settings]
    if (given / LORA_FILE).is_file():
        return [given / LORA_FILE]
    files = [given / _PEFT_FILE, given / _PEFT_SETTINGS]
    if all(file.is_file() for file in files):
        return files
    raise _refusal(
        path,
        f"the folder has no {LORA_FILE} (diffusers) and no {_PEFT_FILE} with {_PEFT_SETTINGS} (peft)",
        "name a folder that has one, or the file itself",
    )


def check_lora(path: str, adaptation: AdaptationConfig) -> None:
    """Refuse a LoRA that a run cannot start from, by its file header alone.

    Raises:
        ModelError: no file, another format, or another rank.
    """
    weights, *_ = files = lora_files(path)
    shapes = tensor_shapes(weights)
    for name in shapes:
        _policy_name(path, name)
    if not shapes:
        raise _refusal(path, "it holds no weights", "export it again")
    ranks = {[*shape, 0, 0][0 if ".lora_A." in name else 1] for name, shape in shapes.items()}
    if ranks != {adaptation.rank}:
        found = " and ".join(map(str, sorted(ranks)))
        advice = f"set adaptation.rank={found}" if len(ranks) == 1 else "name one with a single rank"
        raise _refusal(path, f"it has rank {found}, and adaptation.rank is {adaptation.rank}", advice)
    _scale(path, files, adaptation)


def read_lora(
    path: str, adaptation: AdaptationConfig, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Read a LoRA as weights of a policy, whose scale alpha / rank may differ from the file's.

    Args:
        path: `model.adapter`.
        shapes: the policy's trained weights: names (`...lora_A.default.weight`) and shapes.

    Returns:
        The weights, float32, by the policy's names.

    Raises:
        ModelError: they do not fit the policy, or a number is not finite.
    """
    import torch

    check_lora(path, adaptation)
    weights, *_ = files = lora_files(path)
    factor = np.float32(_scale(path, files, adaptation) * adaptation.rank / adaptation.alpha)
    state: dict[str, np.ndarray] = {}
    with safe_open(weights, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 - it is not a mapping
            value = opened.get_tensor(name).to(torch.float32).numpy()
            state[_policy_name(path, name)] = value * factor if ".lora_B." in name else value
    missing, further = sorted(shapes.keys() - state.keys()), sorted(state.keys() - shapes.keys())
    for odd, verb in ((missing, "lacks"), (further, "has")):
        if odd:
            layer = odd[0].partition(".lora_")[0]
            problem = f"its layers differ from those that adaptation.targets names: it {verb} {layer}"
            raise _refusal(path, problem, "set adaptation.targets to the layers that it has")
    for name, value in state.items():
        if value.shape != shapes[name]:
            problem = f"{name} has shape {list(value.shape)}, but this model's has {list(shapes[name])}"
            raise _refusal(path, problem, "name an adapter of this model")
        if not np.isfinite(value).all():
            bad = int((~np.isfinite(value)).sum())
            problem = f"{bad:,} of the {value.size:,} values of {name} are not finite"
            raise _refusal(path, problem, "export it again from a sound checkpoint")
    return state


def _policy_name(path: str, name: str) -> str:
    """Return the policy's name for a tensor in the file."""
    layer = name
    for prefix in _PREFIXES:
        layer = layer.removeprefix(prefix)
    stem, dot, half = layer.rpartition(".lora_")
    if not dot or half not in ("A.weight", "B.weight") or layer == name:
        raise _refusal(
            path,
            f"tensor {quoted(name)} is not part of a transformer's LoRA as diffusers or peft write it",
            "convert it first: load it in diffusers and save it with save_lora_weights",
        )
    return f"{stem}.lora_{half[0]}{_ADAPTER}weight"


def _scale(path: str, files: list[Path], adaptation: AdaptationConfig) -> float:
    """Return alpha / rank by the file's own settings; 1 without settings, as in diffusers."""
    weights, *beside = files
    if beside:
        settings: dict[str, Any] = dict(read_json(beside[0]))
    else:
        with safe_open(weights, framework="np") as opened:
            text = (opened.metadata() or {}).get(_METADATA, "{}")
        try:
            settings = {
                name.removeprefix(_PREFIXES[0]): value for name, value in dict(json.loads(text)).items()
            }
        except (ValueError, TypeError) as error:
            raise _refusal(path, f"its metadata cannot be read ({error})", "export it again") from error
    odd = [f"{name}={settings[name]}" for name in _OTHER_KINDS if settings.get(name)]
    alpha = settings.get("lora_alpha", adaptation.rank)
    if odd or not isinstance(alpha, int | float):
        found = ", ".join(odd) or f"lora_alpha={alpha!r}"
        raise _refusal(path, f"it has {found}", "name a LoRA with one rank and one alpha")
    return alpha / adaptation.rank


def _refusal(path: str, problem: str, advice: str) -> ModelError:
    return ModelError(f"model.adapter = {quoted(path)}: {problem}; {advice}")
