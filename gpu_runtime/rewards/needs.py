"""What the scorers of a run need, looked at without loading one: of each prompt, and of this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpu_runtime.embedded_tasks import shapes
from gpu_runtime.models.hub_folder import local_folder
from gpu_runtime.rewards.geneval import check_row, included
from gpu_runtime.rewards.quoted_text import target_text
from storage.config.reward import RewardConfig
from storage.prompts.files import PromptRecord

_OF_PROMPTS: Mapping[str, Callable[[PromptRecord], object]] = {
    "ocr": lambda prompt: target_text(prompt.text),
    "deepseek-ocr": lambda prompt: target_text(prompt.text),
    "shapes": lambda prompt: check_row(prompt, shapes.CLASSES, shapes.COLOURS, shapes.MOST_OBJECTS),
    "geneval": included,  # which classes there are, only its detector knows
}

_FOLDERS: Mapping[str, tuple[str, ...]] = {
    "geneval": ("detector", "clip"),
    "deepseek-ocr": ("reader",),
    "clip-score": ("clip",),
    "pick-score": ("pick", "pick_processor"),
}


def check_folders(settings: RewardConfig) -> None:
    """Refuse scorers whose weights are not on this machine.

    Raises:
        ModelError: a folder is missing, or files in it.
    """
    for name in sorted(settings.used):
        for setting in _FOLDERS.get(name, ()):
            weights = setting != "pick_processor"
            local_folder(f"reward.{setting}", getattr(settings, setting), weights=weights)


def check_prompt(settings: RewardConfig, prompt: PromptRecord) -> None:
    """Refuse a prompt that one of the scorers could judge no image by.

    Raises:
        PromptFileError: it has no text in quotes, no GenEval row, or one that no image fulfils.
    """
    for name in sorted(settings.used & _OF_PROMPTS.keys()):
        _OF_PROMPTS[name](prompt)
