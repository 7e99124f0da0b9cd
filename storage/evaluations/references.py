"""The outcome of a run to the bit, so that it can be done again and compared: from the record, or a file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from storage.config.loading import stored_config
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.record.checkpoints import CheckpointStore
from storage.record.run_store import RunStore
from storage.text import read_text_file

_FORMAT = 1


@dataclass(frozen=True)
class HeldOut:
    """One held-out image's score; a pair with the one of the same prompt and seed in another run."""

    prompt_id: int
    seed_index: int
    score: float
    exact: bool


@dataclass(frozen=True)
class Reference:
    """A finished run as values.

    Attributes:
        config: its resolved configuration, as JSON values.
        environment: versions, commit, device, digests of prompt and model files.
        digests: SHA-256 of each file of its last checkpoint: weights, moving average, optimiser.
        rewards: mean training reward of each iteration.
        scores: held-out scores of each evaluation, by the iteration it followed.
        prompts: texts of the prompts it used: `train` and `evaluate`, by their number.
    """

    run_id: str
    config: dict[str, Any]
    environment: dict[str, str]
    digests: dict[str, str] = field(default_factory=dict)
    rewards: dict[int, float] = field(default_factory=dict)
    scores: dict[int, list[HeldOut]] = field(default_factory=dict)
    prompts: dict[str, dict[int, str]] = field(default_factory=dict)

    @property
    def run_config(self) -> RunConfig:
        """Its configuration.

        Raises:
            ConfigurationError: this version has other settings.
        """
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
        ConfigurationError: it is not finished.
        CheckpointError: its last checkpoint is damaged.
    """
    row = store.run(run_id)
    if row.status != "finished":
        raise ConfigurationError(
            f"run {run_id!r} is {row.status}, and only a finished run can be done again; go on with "
            f"`spotlight resume {run_id}`"
        )
    with store.records.reading(run_id) as connection:
        rewards = connection.execute(
            "SELECT iteration, value FROM iteration_metrics WHERE run_id = ? AND name = 'reward_mean'",
            [run_id],
        ).fetchall()
        images = connection.execute(
            "SELECT iteration, prompt_id, seed_index, score, exact FROM evaluation_images WHERE run_id = ? "
            "ORDER BY iteration, prompt_id, seed_index",
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
    checkpoint = CheckpointStore(store.home.run(run_id), 1).load_latest()
    blobs = checkpoint.blobs if checkpoint is not None else {}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(blobs.items())}
    config = row.config.model_dump(mode="json")
    return Reference(run_id, config, row.environment, digests, dict(sorted(rewards)), scores, prompts)


def write_reference(reference: Reference, file: Path) -> None:
    """Write it as JSON, for another machine.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    try:
        file.write_text(json.dumps({"format": _FORMAT, **asdict(reference)}, indent=1), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror}; choose another place") from error


def read_reference(file: Path) -> Reference:
    """The inverse of `write_reference`.

    Raises:
        ConfigurationError: it is missing or no reference.
    """
    text = read_text_file(file, f"reference {file}", ConfigurationError)
    problem = ""
    try:
        values = json.loads(text)
        if isinstance(values, dict) and values.pop("format", _FORMAT) != _FORMAT:
            raise ConfigurationError(f"{file} is of another format than {_FORMAT}; make it again")
        return _READER.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        problem = f"{'.'.join(map(str, first['loc'])) or 'its content'}: {first['msg']}"
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigurationError):
            raise
        problem = f"not JSON that can be read: {error}"
    raise ConfigurationError(
        f"{file} is no reference ({problem}); make one with `spotlight reproduce RUN --write FILE`"
    )


_READER = TypeAdapter(Reference)
