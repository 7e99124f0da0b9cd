"""The files that a run reads, and their digests, so a run never resumes with different ones."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from gpu_runtime.exploration.registry import STRATEGIES, strategy_of
from gpu_runtime.learning.registry import OBJECTIVES
from gpu_runtime.models.files.lora_file import lora_files
from gpu_runtime.models.registry import family_of
from gpu_runtime.rewards.registry import SCORERS, chosen_judge, chosen_scorer
from storage.config.exploration import ExplorationConfig
from storage.config.run_config import RewardConfig, RunConfig
from storage.environment import (
    BEFORE_ROLLOUT,
    BESIDE_TRAINING,
    CLIPS_RATIO,
    DRAFTS_ARE_MADE,
    GIVES_VERDICT,
    JUDGE_DIGEST,
    NO_DRAFTS,
    OBJECTIVE_DIGEST,
    REWARD_DIGEST,
    STRATEGY_DIGEST,
    read_decisions,
    read_earlier_ends,
)
from storage.errors import ConfigurationError
from storage.prompts.files import prompt_files, source_files

_SHOWN = 12
"""The number of digits of a digest in a message."""

_LARGE_BYTES = 1 << 20


def input_digests(config: RunConfig) -> dict[str, str]:
    """Return SHA-256 (hexadecimal) of the files that a run reads, to be stored.

    Returns:
        `digest prompts.train` and `digest prompts.evaluate`, of the file's bytes; `digest model`, of the list
        of digests and names that `sha256sum` prints for the model's files. A dataset of several files, a
        prompt file with the images that its rows name, and the adapter that a run starts from (`digest
        adapter`) also have such a list. `code_digests` follow.

    Raises:
        ConfigurationError, PromptFileError, ModelError: a file is missing.
    """
    model, prompts, adapter = config.model, config.prompts, config.model.adapter
    return {
        "digest prompts.train": _digest_prompts(prompts.train),
        "digest prompts.evaluate": _digest_prompts(prompts.evaluate),
        "digest model": _digest_list(family_of(model).files(model)),
        **({"digest adapter": _digest_list(lora_files(adapter))} if adapter else {}),
        **code_digests(config),
    }


def code_digests(config: RunConfig, judges_alone: bool = False) -> dict[str, str]:
    """Return SHA-256 of the source files of a run's judges, strategy and objective.

    Args:
        judges_alone: True for only the reward and the second judge.

    Returns:
        `digest reward`, `digest evaluation.judge`, `digest exploration.strategy` and `digest
        algorithm.objective`, except for Spotlight's own. Several files, as for a sum or a module that imports
        the scorer from another, have the digest of their list.

    Raises:
        ConfigurationError: one of them does not exist, or an option of a scorer is wrong.
    """
    return {name: _digest_files(files) for name, files in _code_files(config, judges_alone).items()}


def _code_files(config: RunConfig, judges_alone: bool = False) -> dict[str, Sequence[Path]]:
    reward, judge = chosen_scorer(config.reward), chosen_judge(config.reward, config.evaluation)
    names = {
        REWARD_DIGEST: [reward.name, *(part.name for part in reward.judges)],
        JUDGE_DIGEST: [judge.name] if judge else [],
    }
    found: dict[str, Sequence[Path]] = {
        fact: [*dict.fromkeys(file for name in some for file in SCORERS.sources(name))]
        for fact, some in names.items()
    }
    if not judges_alone:
        found[STRATEGY_DIGEST] = STRATEGIES.sources(config.exploration.strategy)
        found[OBJECTIVE_DIGEST] = OBJECTIVES.sources(config.algorithm.objective)
    return {fact: files for fact, files in found.items() if files}


def images_in_words(config: RunConfig) -> str:
    """Return how many images an iteration trains on, and how many while its strategy does not explore."""
    group = config.algorithm.group_size
    images = config.algorithm.prompts_per_iteration * group
    undrafted = strategy_of(config.exploration).undrafted_groups(2, config) * group  # of most iterations
    return f"{images} images" + (f" ({undrafted} while nothing is explored)" if undrafted != images else "")


def plugin_facts(config: RunConfig) -> dict[str, str]:
    """Return facts about a run's strategy, objective and reward, to store with it."""
    clips = OBJECTIVES.find(config.algorithm.objective).clips_ratio
    strategy = strategy_of(config.exploration)
    moments = {
        BESIDE_TRAINING: strategy.drafts_beside_training,
        BEFORE_ROLLOUT: strategy.drafts_before_rollout,
    }
    drafts = " and ".join(moment for moment, used in moments.items() if used) or NO_DRAFTS
    return {DRAFTS_ARE_MADE: drafts, CLIPS_RATIO: "yes" if clips else "no", **verdict_fact(config.reward)}


def refuse_unfit_facts(facts: Mapping[str, str], settings: ExplorationConfig) -> None:
    """Refuse recorded decisions and earlier ends that the run cannot repeat with its settings.

    Raises:
        ConfigurationError: it cannot repeat them.
    """
    strategy_of(settings).repeat(read_decisions(facts), settings)
    read_earlier_ends(facts)


def gives_verdict(reward: RewardConfig) -> bool:
    """Return True if the reward may call an image exact."""
    return chosen_scorer(reward).gives_verdict


def verdict_fact(reward: RewardConfig) -> dict[str, str]:
    """Return the same as a fact to store with an evaluation."""
    return {GIVES_VERDICT: "yes" if gives_verdict(reward) else "no"}


def refuse_changed_inputs(environment: Mapping[str, str], config: RunConfig) -> None:
    """Refuse to resume a run whose prompts, model, adapter or code differ from those at its start.

    Args:
        environment: the run's environment with the digests from its start; inputs without one pass.

    Raises:
        ConfigurationError: inputs have changed; the message names them all.
        PromptFileError, ModelError: a file is missing.
    """
    model, prompts = config.model, config.prompts
    values = {
        "digest prompts.train": f"prompts.train = {prompts.train!r}",
        "digest prompts.evaluate": f"prompts.evaluate = {prompts.evaluate!r}",
        "digest model": f"model.path = {model.path!r}",
        "digest adapter": f"model.adapter = {model.adapter!r}",
        **{
            fact: f"{fact.removeprefix('digest ')} in {', '.join(map(str, files))}"
            for fact, files in _code_files(config).items()
        },
    }
    changed = [
        f"{values[name]} (SHA-256 {digest[:_SHOWN]}, was {environment[name][:_SHOWN]})"
        for name, digest in input_digests(config).items()
        if environment.get(name, digest) != digest
    ]
    if changed:
        raise ConfigurationError(
            f"files have changed since the run began: {'; '.join(changed)}. Restore the old ones, or start "
            "a new run with `spotlight train`"
        )


def _digest_prompts(path: str) -> str:
    return _digest_files([*prompt_files(path), *source_files(path)])


def _digest_files(files: Sequence[Path]) -> str:
    return _digest(files[0]) if len(files) == 1 else _digest_list(files)


def _digest_list(files: Sequence[Path]) -> str:
    listed = "".join(f"{_digest(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(listed.encode()).hexdigest()


def _digest(path: Path) -> str:
    if path.is_symlink():  # the hub's cache names large files by their SHA-256
        name = os.path.basename(os.readlink(path))
        if re.fullmatch(r"[0-9a-f]{64}", name):
            return name
    status = path.stat()
    facts = (status.st_ino, status.st_size, status.st_mtime_ns)
    return _digest_of_large(path, *facts) if status.st_size >= _LARGE_BYTES else _digest_of_content(path)


@cache
def _digest_of_large(path: Path, *_unchanged: int) -> str:
    """Return a file's digest, reading it once: a resume asks twice, and 50 GB take a minute."""
    return _digest_of_content(path)


def _digest_of_content(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
