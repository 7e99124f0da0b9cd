"""Finished curves of a long benchmark, kept so that an interrupted one goes on where it was."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from benchmarks.report import RESULTS
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.home import Home

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")
K = TypeVar("K")

KEPT = RESULTS / "curves"
"""Curves that the repository keeps, so that a benchmark can go on on another machine."""

_SHORT = 12
"""Characters of a commit as `storage.environment` has it."""


@dataclass(frozen=True)
class CurveStore(Generic[C]):
    """A folder of curves in the home, and one in the repository.

    A curve counts for its commit and for its name only, which says what it was made with (`curve_name`).

    Attributes:
        name: the benchmark's.
        commit: of the code that makes the curves, read once at the start: workers run the code of that
            moment.
        read: a curve from its JSON values.
        earlier: commits whose curves count too (`commits_since`).
    """

    name: str
    commit: str
    read: Callable[[Mapping[str, Any]], C]
    earlier: tuple[str, ...] = ()

    def load(self, curve: str) -> C | None:
        """A kept curve by its name; None where there is none."""
        for commit in self._commits:
            for place in (self._home, KEPT / self.name):
                if (path := place / commit / f"{curve}.json").is_file():
                    return self.read(json.loads(path.read_text(encoding="utf-8")))
        return None

    def load_all(self, curves: Mapping[K, str]) -> dict[K, C]:
        """Those of some curves that are kept, by the keys of their names."""
        found = {key: self.load(curve) for key, curve in curves.items()}
        return {key: values for key, values in found.items() if values is not None}

    def save(self, curve: str, values: C) -> None:
        """Keep a curve under its name; a half-written one is never found."""
        if _is_unknown(self.commit):
            return
        path = self._home / self.commit / f"{curve}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".writing")
        draft.write_text(json.dumps(asdict(values)), encoding="utf-8")
        draft.replace(path)

    def keep(self) -> None:
        """Copy the home's curves into the repository."""
        for commit in self._commits:
            for path in (self._home / commit).glob("*.json"):
                place = KEPT / self.name / commit / path.name
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)

    @property
    def _commits(self) -> list[str]:
        # The code of a changed working tree cannot be known later.
        return [commit for commit in (self.commit, *self.earlier) if not _is_unknown(commit)]

    @property
    def _home(self) -> Path:
        return Home.from_environment().ensure().path / "benchmarks" / self.name


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
