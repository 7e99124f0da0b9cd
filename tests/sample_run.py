"""A made-up run with believable figures and images, for tests and for looking at the dashboard."""

from __future__ import annotations

import os
import random
import time

from storage.config.run_config import RunConfig
from storage.record.records import (
    DeviceState,
    EvaluationRecord,
    IterationRecord,
    JudgedImage,
    Market,
    PaidTime,
    SampleRecord,
    StateInterval,
)
from storage.record.run_store import RunStore
from tasks.inputs import plugin_facts
from tests.sample_seeds import explored, mark_as_exploring, png

ITERATION_S = 18.0
EVALUATION_S = 9.0
_Course = list[tuple[DeviceState, float]]  # states one after another, and how long each lasts
_LETTERS = "ACEFHJKLMNPRTUVWXY34"
_DEVICES: tuple[tuple[str, Market, float], ...] = (
    ("reserved-0", "reserved", 10.98),
    ("spot-0", "spot", 2.51),
    ("spot-1", "spot", 2.51),
)


def iteration_record(run_id: str, iteration: int, started_at: float, samples: int = 256) -> IterationRecord:
    """An iteration of 18 s on three devices, its reward rising slowly and with noise."""
    dice = random.Random(f"{run_id}/{iteration}")
    skill = _skill(iteration)
    scores = [min(1.0, max(0.0, round(dice.gauss(skill, 0.3) * 3) / 3)) for _ in range(samples)]
    metrics = {
        "reward_mean": sum(scores) / len(scores),
        "reward_std": 0.3,
        "exact_share": sum(score == 1 for score in scores) / len(scores),
        "scorer_errors": 0.0,
        "groups": 16.0,
        "groups_dropped": float(dice.randint(0, 3)),
        "loss": dice.gauss(0, 1e-4),
        "kl": 2e-5 * iteration**1.2,
        "clip_share": min(0.6, 0.05 + 0.004 * iteration + dice.random() * 0.03),
        "gradient_norm": dice.uniform(0.2, 0.5),
        "ratio_deviation": dice.uniform(2e-7, 9e-7),
        "rollout_s": 9.0,
        "train_s": 7.0,
        "iteration_s": ITERATION_S,
    }
    rows = [
        SampleRecord(
            prompt_id=place // 16, prompt=f'a sign that says "{_word(place // 16)}"', seed_index=place % 16,
            policy_version=iteration - 1, score=score, exact=score == 1, detail="read it", error=None,
            seed_rank=place % 16, explored_score=None, advantage=(score - skill) / 0.3, worker="spot-0",
        )
        for place, score in enumerate(scores)
    ]  # fmt: skip
    reserved: _Course = [("load", 1.0), ("rollout", 9.0), ("train", 7.0), ("idle", 1.0)]
    spot: _Course = [("load", 1.0), ("rollout", 9.0), ("idle", 8.0)]
    intervals = _intervals(started_at, reserved, range(1)) + _intervals(started_at, spot, range(1, 3))
    return IterationRecord(
        run_id, iteration, iteration, started_at, started_at + ITERATION_S, metrics, rows,
        intervals=intervals, paid_time=paid_for(intervals),
    )  # fmt: skip


def evaluation_record(
    run_id: str, iteration: int, started_at: float, images: int = 96, gallery: int = 12
) -> EvaluationRecord:
    """A held-out evaluation of 9 s; the better the later."""
    pictures = [_picture(run_id, iteration, place, place < gallery) for place in range(images)]
    return EvaluationRecord(
        run_id, iteration, iteration, started_at, started_at + EVALUATION_S,
        score=sum(p.score for p in pictures) / images, exact=sum(p.exact for p in pictures) / images,
        images=pictures,
        intervals=(intervals := _intervals(started_at, [("rollout", 8.0), ("idle", 1.0)], range(3))),
        paid_time=paid_for(intervals),
    )  # fmt: skip


def paid_for(intervals: list[StateInterval]) -> list[PaidTime]:
    """What the meters say of devices that were in one state at any time, without a gap."""
    markets: dict[str, Market] = {interval.worker: interval.market for interval in intervals}
    return [
        PaidTime(worker, market, sum(i.ended_at - i.started_at for i in intervals if i.worker == worker))
        for worker, market in markets.items()
    ]


def write_sample_run(
    store: RunStore,
    run_id: str = "glyphs-sample",
    iterations: int = 40,
    status: str = "finished",
    pid: int = 0,
    exploring: bool = False,
    objective: str = "grpo",
) -> None:
    """Write a whole run: evaluations before, every 10 iterations and at the end.

    Args:
        store: where to.
        iterations: how many of the 40 planned are done.
        status: `finished`, or `running` by process `pid` (this one, if 0).
        exploring: whether its seeds were chosen by stale drafts; else it took the first ones.
        objective: what it is trained by.
    """
    config = RunConfig.model_validate({"name": "glyphs", "algorithm": {"objective": objective}})
    rented = {"torch": "2.13.0", "commit": "87baa7f", "accelerators": "3 x NVIDIA H100"}
    store.create_run(run_id, config, rented | plugin_facts(config), pid or os.getpid())
    if exploring:
        mark_as_exploring(store, run_id)
    now = time.time() - iterations * ITERATION_S - (2 + iterations // 10) * EVALUATION_S
    store.commit_evaluation(evaluation_record(run_id, 0, now))
    now += EVALUATION_S
    for iteration in range(1, iterations + 1):
        record = iteration_record(run_id, iteration, now)
        store.commit_iteration(explored(record) if exploring else record)
        now += ITERATION_S
        if iteration % 10 == 0:
            store.commit_evaluation(evaluation_record(run_id, iteration, now))
            now += EVALUATION_S
    if status == "finished":
        store.set_status(run_id, "finished")
        store.compact(run_id)


def _skill(iteration: int) -> float:
    return 0.42 + 0.45 * (1 - 0.96**iteration)


def _word(place: int) -> str:
    dice = random.Random(place)
    return "".join(dice.choice(_LETTERS) for _ in range(3))


def _picture(run_id: str, iteration: int, place: int, with_png: bool) -> JudgedImage:
    difficulty = random.Random(place).random()  # the same prompt and seed at every evaluation
    right = sum(difficulty + offset < 1.25 * _skill(iteration) for offset in (0.0, 0.18, 0.36))
    word = _word(1000 + place)
    read = word[:right] + "".join("O0Q"[k] for k in range(3 - right))
    picture = png(read, place, 110 - 2 * iteration) if with_png else None
    dice = random.Random(place)
    looks = {  # nearer to the renderer's picture the later, and a little grainier
        "truth_distance": dice.uniform(0.08, 0.12) * 0.99**iteration,
        "grain": dice.uniform(0.018, 0.022) * 1.002**iteration,
        "edges": dice.uniform(0.2, 0.3),
        "diversity_across": dice.uniform(0.9, 1.1),
    }
    return JudgedImage(
        prompt_id=place, prompt=f'a sign that says "{word}"', seed_index=0, tag="", score=right / 3,
        exact=right == 3, detail=f'read "{read}"', error=None, png=picture, figures=looks,
    )  # fmt: skip


def _intervals(started_at: float, states: _Course, devices: range) -> list[StateInterval]:
    intervals: list[StateInterval] = []
    for device in devices:
        worker, market, usd_per_hour = _DEVICES[device]
        at = started_at
        for state, lasting_s in states:
            intervals.append(StateInterval(worker, market, state, at, at + lasting_s, usd_per_hour))
            at += lasting_s
    return intervals
