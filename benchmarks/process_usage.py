"""What processes hold: descriptors, sockets, threads and memory, and how these grow."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Held = dict[str, float]
"""`descriptors`, `sockets`, `threads`, `resident_mib` and `anonymous_mib` of a process. Anonymous memory is
what it was allocated, not mapped from files; a page that a fork shares is copied when it is first written
to, and counts once before and once after."""


@dataclass(frozen=True)
class Usage:
    """What all processes of a benchmark hold at one time.

    Attributes:
        held: of each process, by its name.
        store_keys: keys in the controller's store.
    """

    held: Mapping[str, Held]
    store_keys: int

    def total(self) -> dict[str, float]:
        """Over all processes; memory that several share is counted in each of them."""
        first = next(iter(self.held.values()))
        summed = {name: sum(one[name] for one in self.held.values()) for name in first}
        return summed | {"store_keys": self.store_keys}


def process_usage(_: Any) -> Held:
    """Called in any process: what it holds, without what is free but kept for later.

    A full collection empties Python's lists of free objects as well, which fill up slowly to a fixed length.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # the listing's own descriptor
            continue
    memory = _memory_kib()
    return {
        "descriptors": len(links),
        "sockets": sum(link.startswith("socket:") for link in links),
        "threads": len(os.listdir("/proc/self/task")),
        "resident_mib": memory["Rss"] / 1024,
        "anonymous_mib": memory["Anonymous"] / 1024,
    }


def growth_mib(usages: Sequence[Usage]) -> dict[str, list[float]]:
    """Anonymous memory that each process gained from one time to the next, and `all` of them.

    A leak grows by as much in every part; what fills up once, and stays, grows in the first.
    """
    names = list(usages[0].held)
    gained = {
        name: [
            after.held[name]["anonymous_mib"] - before.held[name]["anonymous_mib"]
            for before, after in itertools.pairwise(usages)
        ]
        for name in names
    }
    together: list[float] = [sum(parts) for parts in zip(*gained.values(), strict=True)]
    return gained | {"all": together}


def _memory_kib() -> dict[str, int]:
    found: dict[str, int] = {}
    for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        name, value, _ = line.split()
        found[name.rstrip(":")] = int(value)
    return found
