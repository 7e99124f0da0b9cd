"""The prompts of a run: enough of them, or a clear error; and which of them each evaluation has.

A part of a file stands for all of it and is drawn without chance. The file's head would not do: benchmarks
sort their prompts by task.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, PromptFileError
from storage.prompts.files import PromptRecord, load_prompts, resolve_prompt_path

_KEY = b"spotlight: held-out prompts"
"""Another key would draw other subsets, which no earlier score compares with."""


def load_run_prompts(config: RunConfig) -> tuple[list[PromptRecord], list[PromptRecord]]:
    """The run's training prompts and its held-out ones: all that the two files have.

    Raises:
        PromptFileError: if a file is missing or malformed.
        ConfigurationError: if a file has fewer prompts than the run needs.
    """
    train = load_prompts(config.prompts.train)
    evaluate = load_prompts(config.prompts.evaluate)
    per_iteration = config.algorithm.prompts_per_iteration
    _refuse_too_few("prompts.train", train, "algorithm.prompts_per_iteration", per_iteration)
    _refuse_too_few("prompts.evaluate", evaluate, "evaluation.prompts", config.evaluation.prompts)
    return train, evaluate


def compared_prompts(config: RunConfig, held_out: Sequence[PromptRecord]) -> list[PromptRecord]:
    """The held-out prompts that every evaluation of a run has; over them its scores compare.

    The first and the last evaluation have the whole file, those between them only these.

    Args:
        held_out: all prompts of its file.
    """
    return draw_subset(held_out, config.evaluation.prompts if config.evaluates_between else len(held_out))


def draw_subset(prompts: Sequence[PromptRecord], count: int) -> list[PromptRecord]:
    """Draw some of a file's prompts, each tag in its share, in the order of the file.

    Within a tag the smallest hashes of what prompts say are taken: neither their order in the file nor a
    generator decides. A prompt that stands in several rows is taken twice only where all others are in.

    Args:
        count: how many; all of them where there are no more.
    """
    if count >= len(prompts):
        return list(prompts)
    by_tag: defaultdict[str, list[tuple[int, bytes, PromptRecord]]] = defaultdict(list)
    seen: Counter[tuple[str, str]] = Counter()
    for prompt in prompts:
        by_tag[prompt.tag].append((seen[prompt.identity], _rank(prompt), prompt))
        seen[prompt.identity] += 1
    shares = _shares({tag: len(rows) for tag, rows in by_tag.items()}, count)
    drawn = [
        prompt
        for tag, rows in by_tag.items()
        for _, _, prompt in sorted(rows, key=lambda row: row[:2])[: shares[tag]]
    ]
    return sorted(drawn, key=lambda prompt: prompt.prompt_id)


def held_out_in_words(config: RunConfig) -> str:
    """Which part of the file a run's evaluations have, and how many images that takes.

    Raises:
        PromptFileError, ConfigurationError: as `load_run_prompts`.
    """
    _, held_out = load_run_prompts(config)
    compared = compared_prompts(config, held_out)
    if len(compared) == len(held_out):
        return f"each evaluation has {part_in_words(held_out, held_out)}"
    images = config.evaluation.images_per_prompt
    return (
        f"the first and the last evaluation have {part_in_words(held_out, held_out)} "
        f"({len(held_out) * images:,} images each), the others {part_in_words(compared, held_out)} "
        f"({len(compared) * images:,} images)"
    )


def part_in_words(part: Sequence[PromptRecord], held_out: Sequence[PromptRecord]) -> str:
    """How much of a file some of its prompts are.

    Args:
        part: as `draw_subset` draws them.
        held_out: all prompts of the file.
    """
    if len(part) == len(held_out):
        return f"all {len(held_out)} held-out prompts"
    shares = ", every tag in its share" if any(prompt.tag for prompt in part) else ""
    return f"{len(part)} of {len(held_out)} held-out prompts{shares}"


def held_out_prompts(config: RunConfig, iteration: int) -> int:
    """How many prompts the evaluation after this iteration has (0: of the untouched model).

    The file may be another machine's, as that of a recorded run: `evaluation.prompts` is then all that is
    known of it.
    """
    part = config.evaluation.prompts
    if 0 < iteration < config.iterations:
        return part
    try:
        path = resolve_prompt_path(config.prompts.evaluate)
        return _count(str(path), path.stat().st_mtime_ns)
    except (PromptFileError, OSError):
        return part


@lru_cache(maxsize=32)
def _count(path: str, modified_ns: int) -> int:
    """Prompts of a file as it is at this time."""
    return len(load_prompts(path))


def _refuse_too_few(field: str, prompts: Sequence[PromptRecord], limit: str, count: int) -> None:
    if len(prompts) < count:
        raise ConfigurationError(
            f"{field} names a file of {len(prompts)} prompts, fewer than {limit} = {count}; lower {limit} or "
            "give a longer file"
        )


def _shares(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """How many of `count` each tag has: by largest remainder, and one each where there are enough."""
    whole = sum(sizes.values())
    shares = dict.fromkeys(sorted(sizes), int(count >= len(sizes)))
    for _ in range(count - sum(shares.values())):
        # In whole numbers, so that equal claims are equal; the first name wins then.
        neediest = max(shares, key=lambda tag: sizes[tag] * count - shares[tag] * whole)
        shares[neediest] += 1
    return shares


def _rank(prompt: PromptRecord) -> bytes:
    # The image as the row names it: its absolute path is that of one machine.
    said = f"{prompt.text}\0{prompt.metadata.get('image', '')}"
    return hashlib.blake2b(said.encode(), key=_KEY, digest_size=16).digest()
