"""A part of a prompt file that stands for all of it, drawn without chance.

The head of a file does not: benchmarks sort their prompts by task.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from storage.prompts.files import PromptRecord

_KEY = b"spotlight: held-out prompts"
"""Another key would draw other subsets, which no earlier score compares with."""


def draw_subset(prompts: Sequence[PromptRecord], count: int) -> list[PromptRecord]:
    """Draw some of a file's prompts, each tag in its share, in the order of the file.

    Within a tag the smallest hashes of what prompts say are taken: neither their order in the file nor a
    generator decides. A prompt that stands in several rows is taken twice only where all others are in.

    Args:
        prompts: of the file.
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
