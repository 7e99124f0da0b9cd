"""Reproductions of runs: the exact outcome of a finished run, and the outcome of each reproduction.

The reference comes from the record, or from a file of another machine.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from storage.config.loading import stored_config
from storage.config.run_config import BudgetConfig, RunConfig
from storage.errors import ConfigurationError, RunNotFoundError, quoted
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from storage.record.files import read_json, refusals, write_json
from storage.record.reading import RecordConnection
from storage.record.run_store import RunStore
from storage.text import read_text_file

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["recorded", "identical", "within", "drifted", "failed"]
"""`recorded`: the first of its series, compared with nothing. `within`: other bits, because of another kind
of device or degrees chosen by measured times, but scores within the interval."""

_SHOWN = (
    "verdict", "message", "series", "reference", "run_id", "score_was", "score_is", "difference", "low",
    "high", "differences",
)  # fmt: skip


@dataclass(frozen=True)
class HeldOut:
    """The score of one held-out image, paired by prompt and seed with another run's."""

    prompt_id: int
    seed_index: int
    score: float
    exact: bool


@dataclass(frozen=True)
class Reference:
    """A finished run as values.

    Attributes:
        config: its resolved configuration, as JSON values.
        environment: versions, commit, device, digests of prompt, model and reward files.
        digests: SHA-256 of each file of its last checkpoint: weights, moving average, optimiser.
        rewards: mean training reward of each iteration.
        scores: held-out scores of each evaluation, by the iteration it followed; unscored images are left
            out.
        prompts: texts of the prompts it used: `train` and `evaluate`, by their number.
    """

    run_id: str
    config: dict[str, Any]
    environment: dict[str, str]
    digests: dict[str, str] = field(default_factory=dict)
    rewards: dict[int, float] = field(default_factory=dict)
    scores: dict[int, list[HeldOut]] = field(default_factory=dict)
    prompts: dict[str, dict[int, str]] = field(default_factory=dict)
    format: Literal[1] = 1

    @property
    def run_config(self) -> RunConfig:
        """Its configuration; a ConfigurationError if the settings are of another version."""
        return stored_config(
            self.config, f"the reference {self.run_id}", "make a new one, or use the commit that made it"
        )

    @property
    def score(self) -> float | None:
        """Mean held-out score of its last evaluation."""
        last = self.scores[max(self.scores)] if self.scores else []
        return sum(one.score for one in last) / len(last) if last else None


def reference_of(store: RunStore, run_id: str) -> Reference:
    """Read the outcome of a finished run.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigurationError: the run is not finished.
        CheckpointError: its last checkpoint is damaged.
    """
    row = store.run(run_id)
    if row.status != "finished":
        raise ConfigurationError(
            f"run {run_id!r} is {row.status}, and only a finished run can be repeated; continue with "
            f"`spotlight resume {run_id}`"
        )
    with store.reading(run_id) as connection:
        rewards = connection.execute(
            "SELECT iteration, value FROM iteration_metrics WHERE run_id = ? AND name = 'reward_mean'",
            [run_id],
        ).fetchall()
        images = connection.execute(
            "SELECT iteration, prompt_id, seed_index, score, exact FROM evaluation_images WHERE run_id = ? "
            "AND error IS NULL ORDER BY iteration, prompt_id, seed_index",
            [run_id],
        ).fetchall()
        texts = connection.execute(
            "SELECT purpose, prompt_id, prompt FROM prompts WHERE run_id = ? ORDER BY purpose, prompt_id",
            [run_id],
        ).fetchall()
    scores: dict[int, list[HeldOut]] = {}
    for iteration, *values in images:
        scores.setdefault(iteration, []).append(HeldOut(*values))
    prompts: dict[str, dict[int, str]] = {}
    for purpose, prompt_id, text in texts:
        prompts.setdefault(purpose, {})[prompt_id] = text
    checkpoint = CheckpointStore(store.home.run(run_id)).load_latest(passes_over=False)
    blobs = checkpoint.blobs if checkpoint is not None else {}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(blobs.items())}
    # A finished run with a reason ended at its budget, with drafts for an iteration that never ran.
    done = row.last_iteration if row.error and row.last_iteration else row.config.iterations
    if done < row.config.iterations:
        digests = {name: value for name, value in digests.items() if not name.startswith("drafts")}
    # Time and prices decide when a budget is reached: only completed iterations can be repeated.
    repeated = row.config.model_copy(update={"iterations": done, "budget": BudgetConfig()})
    config = repeated.model_dump(mode="json")
    return Reference(run_id, config, row.environment, digests, dict(sorted(rewards)), scores, prompts)


def write_reference(reference: Reference, file: Path) -> None:
    """Write a reference as JSON, for another machine; a ConfigurationError if the file cannot be written."""
    try:
        file.write_text(json.dumps(asdict(reference), indent=1), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror}; choose another place") from error


def read_reference(file: Path) -> Reference:
    """Read a file of `write_reference`; a ConfigurationError if it is missing or not a reference."""
    text = read_text_file(file, f"reference {file}", ConfigurationError)
    try:
        return TypeAdapter(Reference).validate_json(text)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        first = min(errors, key=lambda each: each["loc"] != ("format",))  # the others follow from it
        given = f", not {quoted(first['input'])}" if first["type"] == "literal_error" else ""
        raise ConfigurationError(
            f"{file} is not a reference ({'.'.join(map(str, first['loc'])) or 'its content'}: {first['msg']}"
            f"{given}); make one with `spotlight reproduce RUN --write FILE`"
        ) from error


@dataclass(frozen=True)
class Reproduction:
    """One reproduction of a run.

    Attributes:
        series: subject of repeated reproductions: a preset, a run, a file.
        how: `train` or `evaluate`.
        reference: run that was reproduced.
        run_id: new run; None if none was made.
        started_at, ended_at: Unix seconds.
        score_was, score_is: mean held-out score of the reference and of this run.
        difference, low, high: mean difference of paired held-out scores, this run minus the reference, and
            its 95 % interval.
        differences: each with `kind` (versions, device, configuration, data, code or result), `what`, `was`
            and `is`.
    """

    reproduction_id: str
    series: str
    how: str
    reference: str
    run_id: str | None
    started_at: float
    ended_at: float
    verdict: Verdict
    message: str
    score_was: float | None = None
    score_is: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    differences: list[dict[str, str]] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return its named results in a command's output form."""
        return {name: getattr(self, name) for name in _SHOWN}


def write_reproduction(home: Home, done: Reproduction) -> None:
    """Write a reproduction; writing the same again changes nothing. StorageError if the disk refuses."""
    with refusals(f"reproduction {done.reproduction_id} into {home.reproductions}"):
        home.reproductions.mkdir(mode=0o700, exist_ok=True)
        write_json(_file(home, done.reproduction_id), asdict(done))


def _file(home: Home, reproduction_id: str) -> Path:
    return home.reproductions / f"{quote(reproduction_id, safe='')}.json"


def reference_run_of(home: Home, series: str) -> str | None:
    """Return the run that a series is compared with: the latest recorded for it; None if there is none."""
    with RunStore(home).reading() as connection:
        row = connection.execute(
            "SELECT run_id FROM reproductions WHERE series = ? AND verdict = 'recorded' "
            "ORDER BY started_at DESC LIMIT 1",
            [series],
        ).fetchone()
    return row[0] if row else None


def reproductions(connection: RecordConnection) -> pd.DataFrame:
    """Return the latest 500 reproductions, newest first; `differences` is JSON text."""
    return connection.execute(
        "SELECT * FROM reproductions ORDER BY started_at DESC, reproduction_id LIMIT 500"
    ).df()


def reproduction_of(home: Home, reproduction_id: str) -> Reproduction:
    """Return one reproduction; a RunNotFoundError if there is none, a StorageError if its file is damaged."""
    file = _file(home, reproduction_id)
    if not file.exists():
        raise RunNotFoundError(f"no reproduction {reproduction_id!r}; `spotlight reproduce RUN` makes one")
    return Reproduction(**read_json(file))
