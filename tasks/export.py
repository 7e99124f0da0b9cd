"""A run's weights as files that others load, with a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.numpy import load

from gpu_runtime.learning.policy import Policy, WeightState
from gpu_runtime.models.embedded import EmbeddedModel
from gpu_runtime.models.families import family_of
from gpu_runtime.models.loading import load_model
from gpu_runtime.models.lora_file import LORA_FILE, write_lora
from storage.checkpoints import CheckpointStore
from storage.config import RunConfig
from storage.errors import CheckpointError, ConfigurationError
from storage.home import Home
from storage.model_card import model_card
from storage.results import evaluated_iterations, run_result
from storage.run_store import RunStore

CARD = "README.md"


def export_run(home: Home, run_id: str, out: Path) -> dict[str, Any]:
    """Write the moving average of a run's newest checkpoint, which its evaluations judge, and a model card.

    A LoRA run gives `pytorch_lora_weights.safetensors`; one that trained all weights gives the whole
    transformer, an embedded model its own folder.

    Args:
        home: where the run lies.
        run_id: of the run, finished or not.
        out: a new or empty folder.

    Returns:
        `run_id`, `iteration` of the weights, `out`, and the names of the `files`.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigurationError: the folder is not empty.
        CheckpointError: the run has no checkpoint.
        ModelError: the base model is needed, and its files are missing.
    """
    store = RunStore(home)
    row = store.run(run_id)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigurationError(f"--out {out} is not an empty folder; name a new one")
    config = row.config
    checkpoint = CheckpointStore(home.checkpoints(run_id), config.checkpoint.keep).load_latest()
    if checkpoint is None:
        raise CheckpointError(
            f"run {run_id!r} has no checkpoint yet; go on with `spotlight resume {run_id}`, then export it"
        )
    state = load(checkpoint.blobs["average.safetensors"])
    out.mkdir(parents=True, exist_ok=True)
    if config.adaptation.mode == "lora":
        usage = _write_adapters(config, state, out)
    else:
        usage = _write_whole(config, state, out)
    evaluated = max(evaluated_iterations(store.database, run_id), default=None)
    result = run_result(store.database, run_id)
    card = model_card(row, result, checkpoint.iteration, evaluated, usage)
    (out / CARD).write_text(card, encoding="utf-8")
    files = sorted(file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file())
    return {"run_id": run_id, "iteration": checkpoint.iteration, "out": str(out), "files": files}


def _write_adapters(config: RunConfig, state: WeightState, out: Path) -> str:
    embedded = config.model.family == "embedded"
    # An embedded model has Qwen-Image's transformer, and so its adapters.
    pipeline = family_of("qwen-image" if embedded else config.model.family).PIPELINE
    write_lora(pipeline, out, state, config.adaptation)
    if embedded:
        return _python(
            "from gpu_runtime.models.embedded import EmbeddedModel\n\n"
            f"model = EmbeddedModel.load({config.model.path!r})\n"
            'model.transformer.load_lora_adapter("FOLDER", use_safetensors=True)'
        )
    return _python(
        f"import torch\nfrom diffusers import {pipeline.__name__}\n\n"
        f"pipe = {pipeline.__name__}.from_pretrained({config.model.path!r}, torch_dtype=torch.bfloat16)\n"
        'pipe.load_lora_weights("FOLDER")',
        f"`FOLDER` holds `{LORA_FILE}`.",
    )


def _write_whole(config: RunConfig, state: WeightState, out: Path) -> str:
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
        f"pipe = {pipeline}.from_pretrained({config.model.path!r}, transformer=transformer, "
        "torch_dtype=torch.bfloat16)"
    )


def _python(code: str, note: str = "") -> str:
    return f"```python\n{code}\n```" + (f"\n\n{note}" if note else "")
