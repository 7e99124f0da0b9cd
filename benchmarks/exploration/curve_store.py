"""Learning curves of a long benchmark: made some at a time, and kept so that it goes on where it was."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.exploration.learning_curve import Curve, make_curve
from benchmarks.report import RESULTS
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.home import Home

Key = TypeVar("Key")

KEPT = RESULTS / "curves"
"""Curves that the repository keeps, so that a benchmark can go on on another machine."""

_SHORT = 12
"""Characters of a commit as `storage.environment` has it."""


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


@dataclass(frozen=True)
class CurveStore:
    """A folder of curves in the home, and one in the repository.

    A curve counts for its commit and for its name only, which says what it was made with (`curve_name`).

    Attributes:
        name: the benchmark's.
        commit: of the code that makes the curves, read once at the start: workers run the code of that
            moment.
        earlier: commits whose curves count too (`commits_since`).
        jobs: curves made at a time; with 0 none is.
        keeps: True to copy the home's curves into the repository once all are made.
    """

    name: str
    commit: str
    earlier: tuple[str, ...] = ()
    jobs: int = 0
    keeps: bool = False

    @classmethod
    def of_call(cls, name: str, arguments: argparse.Namespace) -> CurveStore:
        """Return the store that a call's options ask for (`add_curve_options`)."""
        jobs = 0 if arguments.as_is else arguments.jobs
        return cls(name, arguments.commit, commits_since(arguments.after), jobs, arguments.keep)

    def curves(self, wanted: Mapping[Key, CurveWanted]) -> dict[Key, Curve]:
        """Return all curves by their keys; those that are not kept yet are made."""
        found = self.kept(wanted)
        missing = {key: want for key, want in wanted.items() if key not in found} if self.jobs else {}
        if missing:
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            with ProcessPoolExecutor(self.jobs, mp_context=get_context("spawn")) as pool:
                running = {
                    pool.submit(_make, want.config.model_dump_json(), want.iterations, want.every): key
                    for key, want in missing.items()
                }
                for call in as_completed(running):
                    key = running[call]
                    found[key] = curve = call.result()
                    self.save(wanted[key].name, curve)
                    ends = f"exact {curve.exact[0]:.3f} -> {curve.exact[-1]:.3f}"
                    print(f"{key}: {ends}, score {curve.score[-1]:.3f}", file=sys.stderr, flush=True)
        if self.keeps:
            for commit in self._commits:
                place = KEPT / self.name / commit
                for path in (self._home / commit).glob("*.json"):
                    place.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, place / path.name)
        return found

    def kept(self, wanted: Mapping[Key, CurveWanted]) -> dict[Key, Curve]:
        """Return the curves that are kept, by their keys."""
        return {key: curve for key, want in wanted.items() if (curve := self.load(want.name)) is not None}

    def load(self, curve: str) -> Curve | None:
        """A kept curve by its name; None where there is none."""
        for commit in self._commits:
            for place in (self._home, KEPT / self.name):
                if (path := place / commit / f"{curve}.json").is_file():
                    return Curve(**json.loads(path.read_text(encoding="utf-8")))
        return None

    def save(self, curve: str, values: Curve) -> None:
        """Keep a curve under its name; a half-written one is never found."""
        if _is_unknown(self.commit):
            return
        path = self._home / self.commit / f"{curve}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".writing")
        draft.write_text(json.dumps(asdict(values)), encoding="utf-8")
        draft.replace(path)

    @property
    def _commits(self) -> list[str]:
        # The code of a changed working tree cannot be known later.
        return [commit for commit in (self.commit, *self.earlier) if not _is_unknown(commit)]

    @property
    def _home(self) -> Path:
        return Home.from_environment().ensure().path / "benchmarks" / self.name


def _make(config_json: str, iterations: int, every: int) -> Curve:
    """Make one curve, in its own process."""
    torch.set_num_threads(1)
    return make_curve(RunConfig.model_validate_json(config_json), iterations, every)


def add_curve_options(parser: argparse.ArgumentParser, seeds: int) -> None:
    """Add the options of a benchmark of curves: how many are made, and which kept ones count."""
    parser.add_argument("--seeds", type=int, default=seeds, help="run seeds of each arm")
    parser.add_argument("--jobs", type=int, default=2, help="curves at a time, one core each")
    parser.add_argument("--as-is", action="store_true", help="make no curve; use those that are kept")
    count = "curves made by these commits or later ones count: nothing that makes them has changed since"
    parser.add_argument("--after", metavar="COMMIT", nargs="+", default=[], help=count)


def commits_since(commits: Sequence[str]) -> tuple[str, ...]:
    """Some commits and all that came after them up to now, the newest first, shortened as they are stored.

    Raises:
        ConfigurationError: git knows no such commit.
    """
    if not commits:
        return ()
    asked = subprocess.run(
        ["git", "rev-list", "HEAD", *(f"^{commit}" for commit in commits)],
        cwd=RESULTS, capture_output=True, text=True,
    )  # fmt: skip
    if asked.returncode:
        raise ConfigurationError(
            f"--after {' '.join(commits)}: {asked.stderr.strip()}; give commits of HEAD's history"
        )
    since = [commit[:_SHORT] for commit in asked.stdout.split()]
    return tuple(dict.fromkeys([*since, *(commit[:_SHORT] for commit in commits)]))


def curve_name(arm: str, config: RunConfig, *more: object) -> str:
    """What a curve is kept as: the same for the same settings alone.

    Args:
        arm: begins the name.
        config: of the run.
        more: what else makes another curve of it, such as its length.
    """
    # Without what is default: a setting that comes later does not make another run of it.
    identity = "|".join([config.model_dump_json(exclude_defaults=True), *map(str, more)])
    return f"{arm}-{config.seed}-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}"


def _is_unknown(commit: str) -> bool:
    return commit == "unknown" or commit.endswith("-dirty")
