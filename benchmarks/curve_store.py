"""Finished curves of a long benchmark, kept so that an interrupted one goes on where it was."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from benchmarks.learning_curve import Curve
from benchmarks.report import RESULTS
from storage.config.run_config import RunConfig
from storage.home import Home

KEPT = RESULTS / "curves"
"""Curves that the repository keeps, so that a benchmark can go on on another machine."""


@dataclass(frozen=True)
class CurveStore:
    """A folder of curves in the home, and one in the repository.

    A curve counts for its commit, configuration and length only.

    Attributes:
        name: the benchmark's.
        commit: of the code that makes the curves, read once at the start: workers run the code of that
            moment.
        earlier: commits whose curves count too, as nothing that makes them has changed since.
    """

    name: str
    commit: str
    earlier: tuple[str, ...] = ()

    def load(self, arm: str, config: RunConfig, iterations: int, every: int) -> Curve | None:
        """A kept curve; None where there is none."""
        file = self._file(arm, config, iterations, every)
        for folder in self._folders:
            if (folder / file).is_file():
                return _read(folder / file)
        return None

    def save(self, arm: str, config: RunConfig, iterations: int, every: int, curve: Curve) -> None:
        """Keep a curve; a half-written one is never found."""
        if _is_unknown(self.commit):
            return
        path = self._home / self.commit / self._file(arm, config, iterations, every)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".writing")
        draft.write_text(json.dumps(curve.to_json()), encoding="utf-8")
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

    @property
    def _folders(self) -> list[Path]:
        return [place / commit for commit in self._commits for place in (self._home, KEPT / self.name)]

    @staticmethod
    def _file(arm: str, config: RunConfig, iterations: int, every: int) -> str:
        # Without what is default: a setting that comes later does not make another run of it.
        identity = f"{config.model_dump_json(exclude_defaults=True)}|{iterations}|{every}"
        digest = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
        return f"{arm}-{config.seed}-{digest}.json"


def _is_unknown(commit: str) -> bool:
    return commit == "unknown" or commit.endswith("-dirty")


def _read(path: Path) -> Curve:
    return Curve(**json.loads(path.read_text(encoding="utf-8")))
