"""Made-up exploration for the sample run: drafts with stale weights, re-scores, pictures."""

from __future__ import annotations

import dataclasses
import io
import random
import statistics
from collections import defaultdict

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw, ImageFont

from storage.environment import BESIDE_TRAINING, DRAFTS_ARE_MADE
from storage.record.records import CandidateRecord, IterationRecord, SampleImage, SampleRecord
from storage.record.run_store import RunStore
from tests.tampering import set_run

GROUP = 16
PICTURED = 3
MIN_SPEARMAN = 0.5
_Pairs = list[tuple[float, float]]  # scores by stale weights and by the rollout's


def explored(record: IterationRecord, holds: float = 0.85) -> IterationRecord:
    """The record as exploration would have left it: a third to two thirds of the drafts are rolled out."""
    dice = random.Random(f"seeds/{record.run_id}/{record.iteration}")
    by_prompt: dict[int, list[SampleRecord]] = defaultdict(list)
    for sample in record.samples:
        by_prompt[sample.prompt_id].append(sample)
    samples: list[SampleRecord] = []
    candidates: list[CandidateRecord] = []
    pairs: _Pairs = []
    for rows in by_prompt.values():
        drawn, drafts, seen = _explored_prompt(dice, rows, record.iteration, holds)
        samples += drawn
        candidates += drafts
        pairs += seen
    metrics = {**record.metrics, **_metrics(record.iteration, samples, candidates, pairs)}
    images = _thumbnails(samples, record.iteration)
    return dataclasses.replace(
        record, samples=samples, candidates=candidates, sample_images=images, metrics=metrics
    )


def mark_as_exploring(store: RunStore, run_id: str, min_spearman: float | None = MIN_SPEARMAN) -> None:
    """Write the setting into a run's configuration, unchecked: it is the dashboard that is looked at."""
    config = store.run(run_id).settings
    config["exploration"] |= {"strategy": "stale"}
    facts = store.run(run_id).environment | {DRAFTS_ARE_MADE: BESIDE_TRAINING}
    config["exploration"].pop("min_spearman", None)
    if min_spearman is not None:
        config["exploration"]["min_spearman"] = min_spearman
    set_run(store, run_id, config=config, environment=facts)


def _explored_prompt(
    dice: random.Random, rows: list[SampleRecord], iteration: int, holds: float
) -> tuple[list[SampleRecord], list[CandidateRecord], _Pairs]:
    first = rows[0]
    skill = min(0.97, 0.1 + 0.055 * first.prompt_id + 0.004 * iteration)
    # The bandit draws more of prompts that sometimes succeed.
    count = GROUP + 8 + round(24 * skill * (1 - skill) * 4 * dice.uniform(0.7, 1.1))
    fresh = [_score(dice, skill) for _ in range(count)]
    stale = [score if dice.random() < holds else _score(dice, skill) for score in fresh]
    ranking = sorted(range(count), key=lambda seed: (-stale[seed], seed))
    rank = {seed: place for place, seed in enumerate(ranking)}
    kept = [*ranking[: GROUP // 2], *ranking[-GROUP // 2 :]]
    version = max(iteration - 2, 0)
    drafts = [
        CandidateRecord(
            first.prompt_id, first.prompt, seed, "full", version, stale[seed], stale[seed] == 1, None,
            round=0 if seed < GROUP + 8 else 1, rank=rank[seed], kept=seed in kept,
        )
        for seed in range(count)
    ]  # fmt: skip
    checked = dice.sample(range(count), 3) if iteration > 1 else []
    drafts += [
        CandidateRecord(
            first.prompt_id, first.prompt, seed, "full", iteration - 1, fresh[seed], fresh[seed] == 1, None,
            round=-1, rank=place, kept=seed in kept,
        )
        for place, seed in enumerate(sorted(checked, key=lambda seed: -fresh[seed]))
    ]  # fmt: skip
    places = {seed: place for place, seed in enumerate(sorted(kept, key=lambda seed: -fresh[seed]))}
    samples = [
        dataclasses.replace(
            row, seed_index=seed, score=fresh[seed], exact=fresh[seed] == 1, seed_rank=places[seed],
            explored_score=stale[seed], detail="read it" if fresh[seed] == 1 else 'read "O0Q"',
        )
        for row, seed in zip(rows, sorted(kept), strict=True)
    ]  # fmt: skip
    return samples, drafts, [(stale[seed], fresh[seed]) for seed in {*kept, *checked}]


def _score(dice: random.Random, skill: float) -> float:
    return min(3, max(0, round(3 * dice.gauss(skill, 0.3)))) / 3


def _metrics(
    iteration: int, samples: list[SampleRecord], candidates: list[CandidateRecord], pairs: _Pairs
) -> dict[str, float]:
    drafts = [c for c in candidates if c.round >= 0]
    metrics = {
        "drafts": float(len(drafts)),
        "prompts_unexplored": 0.0,
        "explore_wait_s": 0.4 + 0.2 * (iteration % 5),
        "explore_s": 6.1,
        "spread_random": _variance({(c.prompt_id, c.seed_index): c.score for c in drafts}),
        "spread_kept": _variance({(c.prompt_id, c.seed_index): c.score for c in drafts if c.kept}),
        "spread_rollout": _variance({(s.prompt_id, s.seed_index): s.score for s in samples}),
    }
    if iteration == 1:  # nothing is stale yet
        return metrics
    stale, fresh = np.array(pairs).T
    ranks = pd.DataFrame({"stale": stale, "fresh": fresh}).rank()
    spearman = float(np.corrcoef(ranks["stale"], ranks["fresh"])[0, 1])
    best = {(s.prompt_id, s.seed_index) for s in samples if s.seed_rank < GROUP // 2}
    chosen = {(c.prompt_id, c.seed_index) for c in drafts if c.rank < GROUP // 2}
    return metrics | {
        "spearman": spearman,
        "kendall": 0.9 * spearman,
        "kept_overlap": len(best & chosen) / len(best),
        "draft_error": float(np.abs(stale - fresh).mean()),
    }


def _variance(scores: dict[tuple[int, int], float]) -> float:
    by_prompt: dict[int, list[float]] = defaultdict(list)
    for (prompt_id, _), score in scores.items():
        by_prompt[prompt_id].append(score)
    return statistics.fmean(statistics.pvariance(values) for values in by_prompt.values())


def _thumbnails(samples: list[SampleRecord], iteration: int) -> list[SampleImage]:
    prompts = sorted({s.prompt_id for s in samples})
    shown = {prompts[(PICTURED * iteration + k) % len(prompts)] for k in range(PICTURED)}
    ends = [s for s in samples if s.prompt_id in shown and s.seed_rank in (0, GROUP - 1)]
    return [
        SampleImage(s.prompt_id, s.seed_index, png("MNT" if s.exact else "O0Q", s.prompt_id, 60))
        for s in ends
    ]


def png(text: str, place: int, noise: int) -> bytes:
    """A PNG of 48 by 24 pixels; `place` is its seed, `noise` of 255 pixels are speckles."""
    dice = random.Random(place)
    image = Image.new("RGB", (48, 24), "white")
    colour = dice.choice(["#b3261e", "#1b5e20", "#0d47a1", "#4a148c", "#bf360c"])
    ImageDraw.Draw(image).text((5, 3), text, fill=colour, font=ImageFont.load_default(14))
    for x in range(48):
        for y in range(24):
            if dice.random() < noise / 255:
                image.putpixel((x, y), tuple(dice.randint(120, 255) for _ in range(3)))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
