"""Where a scorer's weights lie: a folder, or the hub's cache on this machine. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from storage.errors import ModelError

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def local_folder(setting: str, name: str, weights: bool = True) -> Path:
    """Find the folder of a model that `from_pretrained` can read.

    A run is paid for while it downloads, and would fail on a machine without a network: so what is not
    there is refused.

    Args:
        setting: the setting that names the model, for messages.
        name: a folder, or a name in the hub's cache such as `openai/clip-vit-large-patch14`.
        weights: also ask for weights; a processor alone has none.

    Raises:
        ModelError: it is neither, or files are missing in it.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        try:
            folder = Path(snapshot_download(name, local_files_only=True))
        except (LocalEntryNotFoundError, HFValidationError) as error:
            raise ModelError(
                f"{setting} = {name!r} is no folder here, and the hub's cache of this machine has no model "
                f"of that name; download it first (`hf download {name}`) or name a folder that holds it"
            ) from error
    wanted = "config.json" if weights else "preprocessor_config.json"
    if not (folder / wanted).is_file():
        raise ModelError(f"{setting} = {name!r}: {folder} has no {wanted}; download the model again, whole")
    if weights and not any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        raise ModelError(
            f"{setting} = {name!r}: {folder} has no weights ({' or '.join(_WEIGHTS)}); download the model "
            "again, whole"
        )
    return folder


def load_whole(model_class: Any, setting: str, folder: Path) -> Any:
    """Load a model of one of transformers' classes, with all its weights.

    transformers draws weights at random where a file lacks them, and only warns. A judge that is partly
    random would be trained on all the same.

    Raises:
        ModelError: the files are of another model, or weights are missing in them.
    """
    try:
        model, report = model_class.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"{setting}: {folder} is no {model_class.__name__} that transformers can load: {error}"
        ) from error
    needed = {name for name, _ in model.named_parameters()}
    lacking = sorted(needed & set(report["missing_keys"]))
    if lacking:
        raise ModelError(
            f"{setting}: {folder} lacks {len(lacking)} weights of a {model_class.__name__}, such as "
            f"{lacking[0]}; name the folder of a whole {model_class.__name__}"
        )
    return model
