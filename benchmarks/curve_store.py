"""Finished curves of a long benchmark, kept so that an interrupted one goes on where it was."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.learning_curve import Curve
from storage.config import RunConfig
from storage.environment import environment
from storage.home import Home


@dataclass(frozen=True)
class CurveStore:
    """A folder of curves in the home; a curve counts for one commit, configuration and length only.

    Attributes:
        name: the benchmark's.
    """

    name: str

    def load(self, arm: str, config: RunConfig, iterations: int, every: int) -> Curve | None:
        """A kept curve; None where there is none."""
        path = self._path(arm, config, iterations, every)
        return Curve(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None

    def save(self, arm: str, config: RunConfig, iterations: int, every: int, curve: Curve) -> None:
        """Keep a curve; a half-written one is never found."""
        path = self._path(arm, config, iterations, every)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".writing")
        draft.write_text(json.dumps(curve.to_json()), encoding="utf-8")
        draft.replace(path)

    def _path(self, arm: str, config: RunConfig, iterations: int, every: int) -> Path:
        identity = f"{environment()['commit']}|{config.model_dump_json()}|{iterations}|{every}"
        digest = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
        folder = Home.from_environment().ensure().path / "benchmarks" / self.name
        return folder / f"{arm}-{config.seed}-{digest}.json"
