"""What is asked about seeds, against hand-worked figures; their rows written, written again, dropped."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pandas as pd
import pytest

from storage.record.queries import seeds as seed_queries
from storage.record.records import (
    CandidateRecord,
    IterationRecord,
    SampleImage,
    SampleRecord,
)
from storage.record.run_store import RunStore

PNG = b"\x89PNG"


pytestmark = pytest.mark.usefixtures("run_r")


def draft(
    seed: int,
    score: float,
    *,
    prompt: int = 0,
    fidelity: str = "full",
    version: int = 3,
    round: int = 0,
    kept: bool = True,
    error: str | None = None,
) -> CandidateRecord:
    return CandidateRecord(
        prompt, f"prompt {prompt}", seed, fidelity, version, score, score == 1, error, round, 0, kept
    )


def sample(seed: int, score: float, rank: int = 0, prompt: int = 0, error: str | None = None) -> SampleRecord:
    """A sample of the rollout, whose weights are of version 4."""
    return SampleRecord(
        prompt, f"prompt {prompt}", seed, 4, score, score == 1, f"seed {seed}", error, rank, 0.5, None, "w"
    )


def committed(
    store: RunStore,
    iteration: int = 5,
    samples: Sequence[SampleRecord] = (),
    candidates: Sequence[CandidateRecord] = (),
    sample_images: Sequence[SampleImage] = (),
) -> None:
    store.commit_iteration(
        IterationRecord(
            "r", iteration, 5, 0.0, 1.0, {}, list(samples),
            candidates=list(candidates), sample_images=list(sample_images),
        )
    )  # fmt: skip


def rows(frame: pd.DataFrame, *columns: str) -> list[tuple]:
    return list(frame[list(columns)].itertuples(index=False, name=None))


BY_OLDER = dataclasses.replace(sample(0, 0.5), policy_version=3)
PAIRS = {
    "a draft that was trained on is no fresh score of itself": (
        [BY_OLDER, sample(1, 0.2)], [draft(0, 0.5), draft(1, 0.9)], [(True, 0.9, 0.2, 1)],
    ),
    "the rollout, or the re-score, which wins over the sample; seed 4 was never looked at again": (
        [sample(1, 0.75), sample(2, 0.25)],
        [draft(1, 1.0), draft(2, 0.5), draft(3, 0.0, kept=False), draft(4, 0.1, kept=False),
         draft(2, 0.3, version=4, round=-1), draft(3, 0.2, version=4, round=-1, kept=False)],
        [(False, 0.0, 0.2, 1), (True, 0.5, 0.3, 1), (True, 1.0, 0.75, 1)],
    ),
    "a draft of the rollout's own weights is not stale": (
        [sample(1, 0.5)], [draft(1, 0.5, version=4)], [],
    ),
    "a refused draft against the one made in its place; seed 1 was rolled out all the same": (
        [sample(1, 0.75), sample(2, 0.25)],
        [draft(1, 0.7, version=4), draft(2, 0.2, version=4), draft(3, 0.4, version=4, kept=False),
         draft(1, 0.1, kept=False), draft(3, 0.9, kept=False), draft(4, 0.3, kept=False),
         draft(4, 0.6, version=4, round=-1, kept=False)],
        [(False, 0.3, 0.6, 1), (False, 0.9, 0.4, 1), (True, 0.1, 0.7, 1)],
    ),
    "the full draft counts, and then the newest": (
        [sample(1, 0.5), sample(2, 0.5)],
        [draft(1, 0.9, fidelity="preview-5"), draft(1, 0.6, round=1),
         draft(2, 0.1, version=2), draft(2, 0.2, version=3), draft(2, 0.3, fidelity="preview-5")],
        [(True, 0.2, 0.5, 1), (True, 0.6, 0.5, 1)],
    ),
    "images without a score are left out": (
        [sample(1, 0.0, error="boom"), sample(2, 0.5), sample(3, 0.25)],
        [draft(1, 0.5), draft(2, 0.0, error="boom"), draft(3, 0.5),
         draft(3, 0.0, version=4, round=-1, error="boom")],
        [(True, 0.5, 0.25, 1)],
    ),
    "equal pairs are counted": (
        [sample(1, 0.25), sample(2, 0.25)], [draft(1, 0.50001), draft(2, 0.5)], [(True, 0.5, 0.25, 2)],
    ),
}  # fmt: skip
"""Samples, drafts, and the pairs of one seed's scores by older and by newer weights."""


@pytest.mark.parametrize("case", PAIRS)
def test_pairs_of_stale_and_fresh_scores(store: RunStore, case: str):
    samples, candidates, expected = PAIRS[case]
    committed(store, samples=samples, candidates=candidates)
    with store.reading() as connection:
        frame = seed_queries.pair_counts(connection, "r", [5])
        assert seed_queries.pair_counts(connection, "r", [4]).empty
    assert rows(frame, "kept", "stale", "fresh", "seeds") == expected


def test_drafts_by_prompt(store: RunStore):
    committed(
        store,
        samples=[sample(1, 1.0), sample(2, 0.0), sample(1, 0.5, prompt=7)],
        candidates=[
            draft(1, 1.0), draft(2, 0.0, round=1), draft(3, 0.5, kept=False), draft(4, 1.0, kept=False),
            draft(4, 0.2, fidelity="preview-5", kept=False),
            draft(3, 0.9, version=4, round=-1, kept=False),
            draft(1, 0.5, prompt=9, kept=False),
        ],
    )  # fmt: skip
    with store.reading() as connection:
        frame = seed_queries.drafts_by_prompt(connection, "r", [5])
    assert rows(frame, "iteration", "prompt_id", "prompt", "drafts", "seeds", "in_plan") == [
        (5, 0, "prompt 0", 5, 4, True),
        (5, 7, "prompt 7", 0, 0, True),  # rolled out unexplored
        (5, 9, "prompt 9", 1, 1, False),  # explored in vain
    ]
    assert frame["success_share"].tolist() == pytest.approx([0.5, math.nan, 0.0], nan_ok=True)


def test_best_and_worst(store: RunStore):
    for iteration in (5, 6, 7):
        committed(
            store, iteration,
            samples=[sample(1, 0.2, 2), sample(2, 1.0, 0), sample(3, 0.6, 1), sample(9, 0.3, 0, prompt=4)],
            sample_images=[SampleImage(0, 1, PNG), SampleImage(0, 2, PNG), SampleImage(0, 3, PNG)]
            + ([SampleImage(4, 9, PNG)] if iteration == 6 else []),
        )  # fmt: skip
    with store.reading() as connection:
        latest, single = (seed_queries.best_and_worst(connection, "r", prompt, 1) for prompt in (0, 4))
        one = seed_queries.best_and_worst(connection, "r", 0, 2)
        prompts = seed_queries.pictured_prompts(connection, "r")
    assert rows(latest, "iteration", "prompt_id", "place", "seed_index", "score", "detail") == [
        (7, 0, "best", 2, 1.0, "seed 2"),
        (7, 0, "worst", 1, 0.2, "seed 1"),
    ]
    assert rows(single, "iteration", "place", "seed_index") == [(6, "best", 9)], "a prompt's own latest"
    assert bytes(latest["png"].iloc[0]) == b"\x89PNG"
    assert rows(one, "iteration", "place") == [(7, "best"), (7, "worst"), (6, "best"), (6, "worst")]
    assert rows(prompts, "prompt_id", "prompt", "iteration") == [(0, "prompt 0", 7), (4, "prompt 4", 6)]
