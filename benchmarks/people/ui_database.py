"""A generated home for the dashboard's benchmark: one long run on many devices, and two beside it.

Everything goes through storage's own writers, many iterations a transaction. The figures are drawn from
seeded distributions: they are there to be many, not to be believed.
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

from storage.config.run_config import RunConfig
from storage.record.records import (
    CandidateRecord,
    DeviceEvent,
    DeviceState,
    EvaluationRecord,
    IterationRecord,
    JudgedImage,
    Market,
    PaidTime,
    SampleImage,
    SampleRecord,
    StateInterval,
)
from storage.record.run_store import RunStore
from tasks.inputs import plugin_facts

LARGE_RUN, LONG_RUN = "large", "long"
"""Identifiers of the runs whose pages are rendered: of many samples, and of many iterations."""

_SEEDS = (0, 1, 2)  # the large run's, and those of the two that differ from it in the seed alone
_GROUP = 16
_DRAFTS = 24  # of each prompt in each iteration
_RESERVED = 4
_PRICES = {"reserved": 10.98, "spot": 2.51}
_ITERATION_S = 60.0
_EVALUATION_S = 20.0
_BEGIN = 1.7e9  # Unix seconds
_BATCH = 20  # iterations a transaction
_EVALUATED = 96
_GALLERY = 12
_LOSS_EVERY = 10  # iterations
_COURSES: dict[Market, list[tuple[DeviceState, float]]] = {
    "reserved": [("load", 1.0), ("rollout", 29.0), ("train", 28.0), ("idle", 2.0)],
    "spot": [("load", 1.0), ("rollout", 29.0), ("explore", 24.0), ("idle", 6.0)],
}


@dataclass(frozen=True)
class Scale:
    """How much there is.

    Attributes:
        samples: of an iteration; whole groups of 16.
        devices: four of them reserved, the others spot.
        evaluate_every: iterations between two evaluations.
    """

    iterations: int
    samples: int
    devices: int
    evaluate_every: int = 20

    @property
    def prompts(self) -> int:
        """Prompts of an iteration."""
        return self.samples // _GROUP


def write_home(store: RunStore, scale: Scale) -> None:
    """Write the runs into an empty home."""
    pictures = [_png(place) for place in range(2 * _GALLERY)]
    for seed in _SEEDS:
        run_id = LARGE_RUN if seed == 0 else f"beside-{seed}"
        # The others are there for their curves; their samples would be read by no page of the first.
        own = scale if seed == 0 else dataclasses.replace(scale, samples=0, devices=_RESERVED + 1)
        _write_run(store, run_id, _config(scale, seed), own, pictures)


def write_long_run(store: RunStore, iterations: int) -> None:
    """Write a run of few samples and many iterations."""
    scale = Scale(iterations, _GROUP, _RESERVED + 2, evaluate_every=100)
    _write_run(store, LONG_RUN, _config(scale, 3), scale, [_png(place) for place in range(2 * _GALLERY)])


def fill(store: RunStore, count: int) -> None:
    """Write short runs until the home has so many runs in all."""
    scale = Scale(2, _GROUP, _RESERVED + 2, evaluate_every=2)
    for number in range(len(store.home.run_ids()), count):
        _write_run(store, f"short-{number:04d}", _config(scale, number), scale, [_png(0)])


def _write_run(store: RunStore, run_id: str, config: RunConfig, scale: Scale, pictures: list[bytes]) -> None:
    store.create_run(run_id, config, {"commit": "generated"} | plugin_facts(config), os.getpid())
    for record in _records(run_id, scale, np.random.default_rng(config.seed), pictures):
        if isinstance(record, IterationRecord):
            store.commit_iteration(record)
            store.compact(run_id, record.iteration)
        else:
            store.commit_evaluation(record)
    store.set_status(run_id, "finished")
    store.compact(run_id)
    # What parts have replaced goes with the next run of the home, once no reader has it open.
    store.folder(run_id).sweep(stay_s=0)


def row_counts(store: RunStore) -> dict[str, int]:
    """Rows of the tables that grow with a run."""
    tables = ("samples", "candidates", "worker_states", "iteration_metrics", "evaluation_images")
    with store.reading() as connection:
        found = {}
        for table in tables:
            row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
            assert row is not None, "a count has one row"
            found[table] = int(row[0])
    return found


def _config(scale: Scale, seed: int) -> RunConfig:
    base = RunConfig(name="large", seed=seed, iterations=scale.iterations)
    sections = {
        "algorithm": {"prompts_per_iteration": scale.prompts, "group_size": _GROUP},
        "exploration": {"strategy": "stale", "candidates": 2 * _DRAFTS},
        "runtime": {"reserved_workers": _RESERVED, "spot_workers": scale.devices - _RESERVED},
        "evaluation": {"every": scale.evaluate_every, "prompts": _EVALUATED, "gallery": _GALLERY},
    }
    changed = {name: getattr(base, name).model_copy(update=values) for name, values in sections.items()}
    return base.model_copy(update=changed)


def _records(
    run_id: str, scale: Scale, dice: np.random.Generator, pictures: list[bytes]
) -> Iterator[IterationRecord | EvaluationRecord]:
    fleet = _Fleet(scale.devices)
    now = _BEGIN
    yield _evaluation(run_id, 0, now, scale, fleet, dice, pictures)
    now += _EVALUATION_S
    for iteration in range(1, scale.iterations + 1):
        yield _iteration(run_id, iteration, now, scale, fleet, dice, pictures)
        now += _ITERATION_S
        if iteration % scale.evaluate_every == 0:
            yield _evaluation(run_id, iteration, now, scale, fleet, dice, pictures)
            now += _EVALUATION_S


class _Fleet:
    """The devices by name; one of the spot ones is lost now and then, and another stands in for it."""

    def __init__(self, devices: int) -> None:
        self._names: list[tuple[str, Market]] = [
            (f"reserved-{k}", "reserved") if k < _RESERVED else (f"spot-{k - _RESERVED}", "spot")
            for k in range(devices)
        ]
        self._has_joined = False

    def joined(self, at: float) -> list[DeviceEvent]:
        """All of them, the first time that it is asked."""
        first, self._has_joined = not self._has_joined, True
        return [DeviceEvent(name, market, "joined", at) for name, market in self._names] if first else []

    def intervals(self, at: float, lasts_s: float, evaluates: bool) -> list[StateInterval]:
        found: list[StateInterval] = []
        for name, market in self._names:
            course: list[tuple[DeviceState, float]] = [("rollout", lasts_s)]
            if not evaluates:
                course = _COURSES[market]
            begin = at
            for state, state_s in course:
                found.append(StateInterval(name, market, state, begin, begin + state_s, _PRICES[market]))
                begin += state_s
        return found

    def lose_one(self, intervals: list[StateInterval], at: float, until: float, place: int):
        """The intervals with one spot device lost at a moment, and what happened."""
        spot = [k for k, (_, market) in enumerate(self._names) if market == "spot"]
        chosen = spot[place % len(spot)]
        name, market = self._names[chosen]
        stem, _, life = name.partition(".")
        again = f"{stem}.{int(life or 0) + 1}"
        self._names[chosen] = (again, market)
        kept = [
            dataclasses.replace(i, ended_at=min(i.ended_at, at)) if i.worker == name else i
            for i in intervals
            if i.worker != name or i.started_at < at
        ]
        kept.append(StateInterval(again, market, "load", at + 2, until, _PRICES[market]))
        events = [
            DeviceEvent(name, market, "lost", at, "its process is gone"),
            DeviceEvent(again, market, "joined", at + 2),
        ]
        return kept, events


def _iteration(
    run_id: str, iteration: int, at: float, scale: Scale, fleet: _Fleet, dice: np.random.Generator,
    pictures: list[bytes],
) -> IterationRecord:  # fmt: skip
    events = fleet.joined(at)
    intervals = fleet.intervals(at, _ITERATION_S, evaluates=False)
    if iteration % _LOSS_EVERY == 0:
        intervals, lost = fleet.lose_one(intervals, at + 40, at + _ITERATION_S, iteration)
        events += lost
    samples, candidates = _seeds(iteration, scale, dice)
    thumbnails = [
        SampleImage(s.prompt_id, s.seed_index, pictures[(iteration + s.seed_rank) % len(pictures)])
        for s in samples[: 2 * _GROUP]
        if s.seed_rank in (0, _GROUP - 1)
    ]
    return IterationRecord(
        run_id, iteration, iteration, at, at + _ITERATION_S, _metrics(iteration, scale, dice), samples,
        candidates, thumbnails, intervals=intervals, device_events=events, paid_time=_paid(intervals),
    )  # fmt: skip


def _paid(intervals: list[StateInterval]) -> list[PaidTime]:
    """What the meters say of devices without gaps."""
    paid: dict[tuple[str, Market], float] = {}
    for i in intervals:
        paid[i.worker, i.market] = paid.get((i.worker, i.market), 0.0) + i.ended_at - i.started_at
    return [PaidTime(worker, market, paid_s) for (worker, market), paid_s in paid.items()]


def _seeds(
    iteration: int, scale: Scale, dice: np.random.Generator
) -> tuple[list[SampleRecord], list[CandidateRecord]]:
    samples: list[SampleRecord] = []
    candidates: list[CandidateRecord] = []
    for place in range(scale.prompts):
        prompt_id = (iteration * scale.prompts + place) % (8 * scale.prompts)
        prompt = f'a sign that says "{prompt_id:04d}"'
        stale = np.clip(dice.normal(_skill(iteration), 0.3, _DRAFTS), 0, 1).round(2)
        fresh = np.clip(stale + dice.normal(0, 0.1, _DRAFTS), 0, 1).round(2)
        ranking = np.argsort(-stale).tolist()
        kept = [*ranking[: _GROUP // 2], *ranking[-_GROUP // 2 :]]
        ranks = {seed: rank for rank, seed in enumerate(ranking)}
        candidates += [
            CandidateRecord(
                prompt_id, prompt, seed, "full", max(iteration - 2, 0), float(stale[seed]),
                bool(stale[seed] == 1), None, round=0, rank=ranks[seed], kept=seed in kept,
            )
            for seed in range(_DRAFTS)
        ]  # fmt: skip
        if place == 0 and iteration > 1:
            candidates += [
                CandidateRecord(
                    prompt_id, prompt, seed, "full", iteration - 1, float(fresh[seed]),
                    bool(fresh[seed] == 1), None, round=-1, rank=ranks[seed], kept=seed in kept,
                )
                for seed in range(_DRAFTS)
            ]  # fmt: skip
        by_score = sorted(kept, key=lambda seed: -fresh[seed])
        samples += [
            SampleRecord(
                prompt_id, prompt, seed, iteration - 1, float(fresh[seed]), bool(fresh[seed] == 1), "read it",
                None, rank, float(stale[seed]), float(fresh[seed] - 0.5), f"spot-{seed}",
            )
            for rank, seed in enumerate(by_score)
        ]  # fmt: skip
    return samples, candidates


def _metrics(iteration: int, scale: Scale, dice: np.random.Generator) -> dict[str, float]:
    return {
        "reward_mean": _skill(iteration) + dice.normal(0, 0.02), "reward_std": 0.3,
        "exact_share": _skill(iteration) ** 2, "scorer_errors": 0.0, "groups": float(scale.prompts or 32),
        "groups_dropped": float(dice.integers(0, 6)), "loss": dice.normal(0, 1e-4), "kl": 2e-5 * iteration,
        "clip_share": 0.1 + 0.05 * dice.random(), "gradient_norm": 0.2 + 0.3 * dice.random(),
        "ratio_deviation": 2e-7 + 7e-7 * dice.random(), "rollout_s": 29.0, "train_s": 28.0,
        "iteration_s": _ITERATION_S, "drafts": float(_DRAFTS * scale.prompts), "prompts_unexplored": 0.0,
        "explore_wait_s": 0.5, "explore_s": 24.0, "spread_random": 0.08, "spread_kept": 0.14,
        "spread_rollout": 0.12, "spearman": 0.9 + 0.05 * dice.normal(), "kendall": 0.8,
        "kept_overlap": 0.85, "draft_error": 0.08, "training_steps": 1.0, "commits": 4.0 * iteration,
    }  # fmt: skip


def _evaluation(
    run_id: str, iteration: int, at: float, scale: Scale, fleet: _Fleet, dice: np.random.Generator,
    pictures: list[bytes],
) -> EvaluationRecord:  # fmt: skip
    images = []
    for place in range(_EVALUATED):
        score = float(np.clip(dice.normal(_skill(iteration), 0.2), 0, 1).round(2))
        picture = pictures[(place + iteration) % len(pictures)] if place < _GALLERY else None
        prompt = f'a board that says "{place:04d}"'
        images.append(JudgedImage(place, 0, prompt, "", score, score == 1, "read it", None, png=picture))
    return EvaluationRecord(
        run_id, iteration, iteration, at, at + _EVALUATION_S, sum(i.score for i in images) / len(images),
        sum(i.exact for i in images) / len(images), images,
        intervals=(intervals := fleet.intervals(at, _EVALUATION_S, evaluates=True)),
        device_events=fleet.joined(at),
        paid_time=_paid(intervals),
    )  # fmt: skip


def _skill(iteration: int) -> float:
    return 0.4 + 0.45 * (1 - 0.995**iteration)


def _png(place: int) -> bytes:
    pixels = np.random.default_rng(place).integers(0, 256, (24, 48, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()
