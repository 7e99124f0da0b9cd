"""Exports a run's weights as files for other programs, with a model card.

torch, diffusers and huggingface_hub are imported where used, because the checks before an export need none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from gpu_runtime.learning.registry import OBJECTIVES
from gpu_runtime.models.files.hub_folder import find_folder
from gpu_runtime.models.registry import family_of
from storage.config.model import EMBEDDED_PREFIX, ModelConfig
from storage.config.run_config import AdaptationConfig, RunConfig
from storage.errors import (
    CheckpointError,
    ConfigurationError,
    ModelError,
    ServerError,
    StorageError,
    quoted,
)
from storage.home import Home
from storage.model_card import CURVE, curve_picture, model_card, public
from storage.record.checkpoints import CheckpointStore
from storage.record.results import held_out_curve, run_result
from storage.record.run_store import RunStore, refuse_simulated
from storage.text import claim_folder, one_line

if TYPE_CHECKING:
    from gpu_runtime.learning.weights import WeightState

CARD = "README.md"
_ADVICE = "check the network and the token's write access"


def export_to_hub(home: Home, run_id: str, name: str, out: Path | None, dry_run: bool) -> dict[str, Any]:
    """Export a run like `export_run`, and upload the folder to the Hub unless it is a dry run.

    Args:
        name: repository: NAME or OWNER/NAME.
        out: a new or empty folder; None for one named after the repository.

    Returns:
        As `export_run`, plus the address in `pushed`, or the repository in `would_push`, and `bytes`.

    Raises:
        ConfigurationError, ServerError: the upload would fail, and nothing is written; or it failed, and
            the folder is complete.
        SpotlightError: as `export_run`.
    """
    _check_hub(name, uploads=not dry_run)
    answer = export_run(home, run_id, out or Path(name.rpartition("/")[2]))
    folder = Path(answer["out"])
    answer["bytes"] = sum((folder / file).stat().st_size for file in answer["files"])
    if dry_run:
        return answer | {"would_push": name}
    from huggingface_hub import HfApi

    with _asking_hub(name, f"{folder} is complete: {_ADVICE}, then run `hf upload {name} {folder}`"):
        repository = HfApi().create_repo(name, exist_ok=True)
        HfApi().upload_folder(  # in one commit
            repo_id=repository.repo_id, folder_path=folder, commit_message="Upload an export of Spotlight"
        )
    return answer | {"pushed": str(repository)}


def export_run(home: Home, run_id: str, out: Path) -> dict[str, Any]:
    """Write a model card and the weights of a run's newest checkpoint that are its result.

    They are what evaluations score (`OptimizerConfig.uses_average`).

    A LoRA run gives `pytorch_lora_weights.safetensors`, a run that trained all weights the whole
    transformer, and an embedded model its own folder.

    Returns:
        `run_id`, `iteration` of the weights, `out`, and the names of the `files`.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigurationError: the folder is not empty, or cannot be created.
        CheckpointError: the run has no readable checkpoint.
        StorageError: the disk refused.
        ModelError: the base model is needed but its files are missing.
    """
    store = RunStore(home)
    row = store.run(run_id)
    refuse_simulated(row)
    config = row.config
    checkpoint = CheckpointStore(home.run(run_id)).load_latest()
    if checkpoint is None:
        raise CheckpointError(
            f"run {run_id!r} has no checkpoint yet; continue with `spotlight resume {run_id}`, then export it"
        )
    try:
        # From the file: the moments beside it are larger than the weights.
        with safe_open(checkpoint.path / "optimizer.safetensors", "numpy") as optimizer:
            steps = int(optimizer.get_tensor("training_steps")[0])
        averaged = config.optimizer.uses_average(steps)
        state = load(checkpoint.blobs["average.safetensors" if averaged else "weights.safetensors"])
    except (OSError, KeyError, SafetensorError) as error:
        raise CheckpointError(
            f"{checkpoint.path} has no readable weights ({error}); continue with `spotlight "
            f"resume {run_id}`, then export it"
        ) from error
    curve, result = held_out_curve(store, run_id), run_result(store, run_id)
    out = claim_folder(out, "--out")
    try:
        if config.adaptation.mode == "lora":
            usage = _write_adapters(config.model, config.adaptation, state, out)
        else:
            usage = _write_whole(config, state, out)
        card = model_card(
            row,
            result,
            checkpoint.iteration,
            curve,
            objective=OBJECTIVES.find(config.algorithm.objective).title or config.algorithm.objective,
            averaged=averaged,
            usage=usage,
            licence=licence_of(config.model),
            edits=family_of(config.model).source_size(config.model) is not None,
        )
        (out / CARD).write_text(card, encoding="utf-8")
        if len(curve) > 1:
            (out / CURVE).write_text(curve_picture(curve), encoding="utf-8")
        files = [file for file in out.rglob("*") if file.is_file()]
        for file in files:  # safetensors ignores the umask and makes files readable only by their owner
            file.chmod((out / CARD).stat().st_mode)
    except OSError as error:
        raise StorageError(f"--out {out} could not be written: {error}; export to another folder") from error
    names = sorted(file.relative_to(out).as_posix() for file in files)
    return {"run_id": run_id, "iteration": checkpoint.iteration, "out": str(out), "files": names}


def licence_of(model: ModelConfig) -> dict[str, str]:
    """Return `license` (or `unknown`) and possibly its name and link, from the base model's card."""
    if model.path.startswith(EMBEDDED_PREFIX):
        return {"license": "apache-2.0"}  # the project's license
    import yaml
    from huggingface_hub import ModelCard

    try:
        card = ModelCard.load(find_folder("model.path", model.path) / CARD).data.to_dict()
    except (ModelError, OSError, ValueError, yaml.YAMLError):  # no folder, no card, or none that can be read
        card = {}
    found = {name: str(card[name]) for name in ("license", "license_name", "license_link") if card.get(name)}
    return found if "license" in found else {"license": "unknown"}


def _write_adapters(model: ModelConfig, adaptation: AdaptationConfig, state: WeightState, out: Path) -> str:
    from gpu_runtime.models.files.lora_file import LORA_FILE, write_lora

    family = family_of(model)
    write_lora(family.pipeline(), out, state, adaptation)
    note = f"`FOLDER` holds `{LORA_FILE}`. {_base_folder(model.path)}"
    return _python(family.adapter_usage(public(model.path)), note)


def _write_whole(config: RunConfig, state: WeightState, out: Path) -> str:
    from gpu_runtime.learning.policy import Policy
    from gpu_runtime.models.embedded.model import EmbeddedModel
    from gpu_runtime.models.loading import load_model

    model: Any = load_model(config.model.model_copy(update={"device": "cpu"}))
    Policy(model, config.adaptation, config.seed, keeps_reference=False).load(state)
    if isinstance(model, EmbeddedModel):
        model.save(out)
        return "`spotlight evaluate --set model.path=FOLDER`, or `train`, with the run's other settings."
    model.transformer.save_pretrained(str(out / "transformer"))
    pipeline, transformer = model.PIPELINE.__name__, model.TRANSFORMER.__name__
    return _python(
        f"import torch\nfrom diffusers import {pipeline}, {transformer}\n\n"
        f'transformer = {transformer}.from_pretrained("FOLDER", subfolder="transformer", '
        "torch_dtype=torch.bfloat16)\n"
        f"pipe = {pipeline}.from_pretrained({public(config.model.path)!r}, transformer=transformer, "
        "torch_dtype=torch.bfloat16)",
        _base_folder(config.model.path),
    )


def _python(code: str, note: str) -> str:
    return f"```python\n{code}\n```\n\n{note}".rstrip()


def _base_folder(path: str) -> str:
    """Return the sentence that a base model is a local folder; a card omits the folder's location."""
    name = public(path)
    return f"`{name}` is the folder of the base model." if name != path else ""


def _check_hub(name: str, uploads: bool) -> None:
    """Refuse an upload that would fail before writing anything; a dry run needs no token or network."""
    try:
        from huggingface_hub import HfApi, get_token
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id
    except ImportError as error:
        raise ConfigurationError(
            f"--push needs huggingface_hub ({error}); run `pip install huggingface_hub`"
        ) from error
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigurationError(f"--push {quoted(name)}: {one_line(str(error))}") from error
    if not uploads:
        return
    if not get_token():
        raise ConfigurationError(
            f"--push {quoted(name)} needs a Hub token, but none was found; run `hf auth login`, "
            "or set HF_TOKEN to one with write access"
        )
    with _asking_hub(name, _ADVICE):
        HfApi().whoami()


@contextmanager
def _asking_hub(name: str, advice: str) -> Iterator[None]:
    from huggingface_hub.errors import HTTPError  # of the client that it uses

    try:
        yield
    except (OSError, ValueError, HTTPError) as error:  # ValueError: it refuses the card
        raise ServerError(
            f"--push {quoted(name)}: the Hub refused or did not answer ({one_line(str(error))}); {advice}"
        ) from error
