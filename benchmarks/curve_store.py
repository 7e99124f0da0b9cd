"""Finished curves of a long benchmark, kept so that an interrupted one goes on where it was."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.learning_curve import Curve
from storage.config import RunConfig
from storage.home import Home


@dataclass(frozen=True)
class CurveStore:
    """A folder of curves in the home; a curve counts for one commit, configuration and length only.

    Attributes:
        name: the benchmark's.
        commit: of the code that makes the curves, read once at the start: workers run the code of that
            moment.
    """

    name: str
    commit: str

    def load(self, arm: str, config: RunConfig, iterations: int, every: int) -> Curve | None:
        """A kept curve; None where there is none."""
        if self._unknown:
            return None
        path = self._path(arm, config, iterations, every)
        return Curve(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None

    def save(self, arm: str, config: RunConfig, iterations: int, every: int, curve: Curve) -> None:
        """Keep a curve; a half-written one is never found."""
        if self._unknown:
            return
        path = self._path(arm, config, iterations, every)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".writing")
        draft.write_text(json.dumps(curve.to_json()), encoding="utf-8")
        draft.replace(path)

    def kept(self) -> dict[tuple[str, int], Curve]:
        """All curves of the commit by arm and run seed, the longest of each; later code may read them too."""
        found: dict[tuple[str, int], Curve] = {}
        for path in sorted(self._folder.glob("*.json")):
            arm, run_seed, _ = path.stem.rsplit("-", 2)
            curve = Curve(**json.loads(path.read_text(encoding="utf-8")))
            known = found.get((arm, int(run_seed)))
            if known is None or known.iterations[-1] < curve.iterations[-1]:
                found[arm, int(run_seed)] = curve
        return found

    @property
    def _unknown(self) -> bool:
        """Nobody can say later what code a changed working tree held."""
        return self.commit == "unknown" or self.commit.endswith("-dirty")

    @property
    def _folder(self) -> Path:
        return Home.from_environment().ensure().path / "benchmarks" / self.name / self.commit

    def _path(self, arm: str, config: RunConfig, iterations: int, every: int) -> Path:
        identity = f"{config.model_dump_json()}|{iterations}|{every}"
        digest = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
        return self._folder / f"{arm}-{config.seed}-{digest}.json"
