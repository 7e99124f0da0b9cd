"""Making the learning curves of a benchmark, some at a time, and keeping each one that is finished."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TypeVar

import torch

from benchmarks.exploration.curve_store import CurveStore
from benchmarks.exploration.learning_curve import Curve, make_curve
from storage.config.run_config import RunConfig

Key = TypeVar("Key")


@dataclass(frozen=True)
class CurveWanted:
    """A curve to make.

    Attributes:
        name: what it is kept as.
        config: what is run.
        iterations: how long.
        every: iterations between evaluations.
    """

    name: str
    config: RunConfig
    iterations: int
    every: int = 1


def curve_in_process(config_json: str, iterations: int, every: int) -> Curve:
    """Make one curve in a process of its own."""
    torch.set_num_threads(1)
    return make_curve(RunConfig.model_validate_json(config_json), iterations, every)


def curve_store(name: str, commit: str, earlier: tuple[str, ...] = ()) -> CurveStore[Curve]:
    """The kept curves of a benchmark; arguments are `CurveStore`'s."""
    return CurveStore(name, commit, lambda values: Curve(**values), earlier)


def make_curves(store: CurveStore[Curve], wanted: Mapping[Key, CurveWanted], jobs: int) -> dict[Key, Curve]:
    """All curves, `jobs` at a time; one that is kept is not made again, and with 0 jobs none is."""
    curves = store.load_all({key: want.name for key, want in wanted.items()})
    if not jobs:
        return curves
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {
            pool.submit(curve_in_process, want.config.model_dump_json(), want.iterations, want.every): key
            for key, want in wanted.items()
            if key not in curves
        }
        for call in as_completed(running):
            key = running[call]
            curves[key] = curve = call.result()
            store.save(wanted[key].name, curve)
            ends = f"exact {curve.exact[0]:.3f} -> {curve.exact[-1]:.3f}"
            print(f"{key}: {ends}, score {curve.score[-1]:.3f}", file=sys.stderr, flush=True)
    return curves
