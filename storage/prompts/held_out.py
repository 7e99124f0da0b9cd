"""The held-out prompts of each evaluation: all of their file, or a selection.

A selection represents the whole file and is drawn without randomness. The file's head would not do, as
benchmarks sort their prompts by task.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

from storage.config.run_config import RunConfig
from storage.errors import PromptFileError
from storage.prompts.files import PromptRecord, load_prompts, load_run_prompts, resolve_prompt_path

_KEY = b"spotlight: held-out prompts"
"""The key of the hashes. Another key would draw other subsets, to which no earlier score is comparable."""


def compared_prompts(config: RunConfig, held_out: Sequence[PromptRecord]) -> list[PromptRecord]:
    """Return the held-out prompts (of all in the file) that every evaluation of a run has, so as to compare.

    The first and the last evaluation have the whole file, those between them only these.
    """
    return draw_subset(held_out, config.evaluation.prompts if config.evaluates_between else len(held_out))


def draw_subset(prompts: Sequence[PromptRecord], count: int) -> list[PromptRecord]:
    """Draw `count` of a file's prompts, with each tag in proportion, in the order of the file.

    Within a tag the prompts with the smallest hashes are taken: neither their order in the file nor a
    generator decides. A prompt in several rows is taken twice only once all others are in.
    """
    if count >= len(prompts):
        return list(prompts)
    by_tag: defaultdict[str, list[tuple[int, bytes, PromptRecord]]] = defaultdict(list)
    seen: Counter[tuple[str, str]] = Counter()
    for prompt in prompts:
        # The image as the row names it: its absolute path is that of one machine.
        said = f"{prompt.text}\0{prompt.metadata.get('image', '')}"
        rank = hashlib.blake2b(said.encode(), key=_KEY, digest_size=16).digest()
        by_tag[prompt.tag].append((seen[prompt.identity], rank, prompt))
        seen[prompt.identity] += 1
    shares = _shares({tag: len(rows) for tag, rows in by_tag.items()}, count)
    drawn = [
        prompt
        for tag, rows in by_tag.items()
        for _, _, prompt in sorted(rows, key=lambda row: row[:2])[: shares[tag]]
    ]
    return sorted(drawn, key=lambda prompt: prompt.prompt_id)


def held_out_in_words(config: RunConfig) -> str:
    """Describe the part of the file in a run's evaluations, and their number of images."""
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
    """Describe what part of a file's held-out prompts some from `draw_subset` are."""
    if len(part) == len(held_out):
        return f"all {len(held_out)} held-out prompts"
    shares = ", every tag in its share" if any(prompt.tag for prompt in part) else ""
    return f"{len(part)} of {len(held_out)} held-out prompts{shares}"


def held_out_prompts(config: RunConfig, iteration: int) -> int:
    """Return the number of prompts in the evaluation after this iteration (0: of the untouched model).

    The file may be on another machine, as for a recorded run: then only `evaluation.prompts` is known.
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
    """Return the number of prompts in a file as of this time of change."""
    return len(load_prompts(path))


def _shares(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """Split `count` among the tags: by largest remainder, and one each if there are enough."""
    whole = sum(sizes.values())
    shares = dict.fromkeys(sorted(sizes), int(count >= len(sizes)))
    for _ in range(count - sum(shares.values())):
        # In whole numbers, so that equal claims are equal; the first name wins then.
        neediest = max(shares, key=lambda tag: sizes[tag] * count - shares[tag] * whole)
        shares[neediest] += 1
    return shares
