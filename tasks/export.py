"""The export of a run's weights as files for other programs, with a model card.

torch and diffusers are imported where they are used: the checks before an export need neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.numpy import load

from gpu_runtime.learning.registry import OBJECTIVES
from gpu_runtime.models.registry import family_of
from storage.config.run_config import RunConfig
from storage.errors import CheckpointError, StorageError
from storage.home import Home
from storage.model_card import model_card
from storage.new_folder import claim_folder
from storage.record.checkpoints import CheckpointStore
from storage.record.results import evaluated_iterations, run_result
from storage.record.run_store import RunStore, refuse_simulated

if TYPE_CHECKING:
    from gpu_runtime.learning.weights import WeightState

CARD = "README.md"
_WEIGHTS = "average.safetensors"


def export_run(home: Home, run_id: str, out: Path) -> dict[str, Any]:
    """Write the moving average of a run's newest checkpoint, which its evaluations judge, and a model card.

    A LoRA run gives `pytorch_lora_weights.safetensors`; one that trained all weights gives the whole
    transformer, an embedded model its own folder.

    Args:
        home: home that holds the run.
        run_id: identifier of the run, finished or not.
        out: a new or empty folder.

    Returns:
        `run_id`, `iteration` of the weights, `out`, and the names of the `files`.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigurationError: the folder is not empty, or cannot be made.
        CheckpointError: the run has no checkpoint that can be read.
        StorageError: the disk refused.
        ModelError: the base model is needed, and its files are missing.
    """
    store = RunStore(home)
    row = store.run(run_id)
    refuse_simulated(row)
    config = row.config
    checkpoint = CheckpointStore(home.run(run_id)).load_latest()
    if checkpoint is None:
        raise CheckpointError(
            f"run {run_id!r} has no checkpoint yet; go on with `spotlight resume {run_id}`, then export it"
        )
    try:
        state = load(checkpoint.blobs[_WEIGHTS])
    except (KeyError, SafetensorError) as error:
        raise CheckpointError(
            f"{checkpoint.path} has no {_WEIGHTS} that can be read ({error}); go on with `spotlight resume "
            f"{run_id}`, then export it"
        ) from error
    evaluated = max(evaluated_iterations(store.records, run_id), default=None)
    result = run_result(store.records, run_id)
    out = claim_folder(out, "--out")
    write = _write_adapters if config.adaptation.mode == "lora" else _write_whole
    try:
        usage = write(config, state, out)
        card = model_card(
            row,
            result,
            checkpoint.iteration,
            evaluated,
            objective=OBJECTIVES.find(config.algorithm.objective).title or config.algorithm.objective,
            usage=usage,
            edits=family_of(config.model).source_size(config.model) is not None,
        )
        (out / CARD).write_text(card, encoding="utf-8")
        files = [file for file in out.rglob("*") if file.is_file()]
        for file in files:  # safetensors ignores the umask: its files are their owner's alone
            file.chmod((out / CARD).stat().st_mode)
    except OSError as error:
        raise StorageError(f"--out {out} could not be written: {error}; export to another folder") from error
    names = sorted(file.relative_to(out).as_posix() for file in files)
    return {"run_id": run_id, "iteration": checkpoint.iteration, "out": str(out), "files": names}


def _write_adapters(config: RunConfig, state: WeightState, out: Path) -> str:
    from gpu_runtime.models.files.lora_file import LORA_FILE, write_lora

    family = family_of(config.model)
    write_lora(family.pipeline(), out, state, config.adaptation)
    return _python(family.adapter_usage(config.model.path), f"`FOLDER` holds `{LORA_FILE}`.")


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
        f"pipe = {pipeline}.from_pretrained({config.model.path!r}, transformer=transformer, "
        "torch_dtype=torch.bfloat16)"
    )


def _python(code: str, note: str = "") -> str:
    return f"```python\n{code}\n```" + (f"\n\n{note}" if note else "")
