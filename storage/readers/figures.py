"""The figures and images of iterations and held-out evaluations for readers, from the record.

The part of a figure's name before the slash is a section of charts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from storage.record.reading import RecordConnection
from storage.record.results import MOMENTS, PAID, VERDICTS

TOTAL_USD = "cost_total_usd"
"""The dollars of a run since its start, evaluations included."""

EVALUATION_USD = "cost_evaluation_usd"
"""The dollars of one held-out evaluation."""

EVALUATION = "evaluation_"
"""The prefix of the names of a held-out evaluation's figures."""

QUALITY_FIGURE = f"{EVALUATION}quality_"
"""The prefix of the names of held-out images' figures."""

IMAGE_MS = "ms_per_image/"
"""The prefix of the names of a phase's time per image, in milliseconds."""

_TRAINING = frozenset(
    {"loss", "kl", "clip_share", "gradient_norm", "ratio_deviation", "training_steps", "groups",
     "groups_dropped", "groups_failed", "ratio_mean", "approx_kl", "clip_fraction", "zero_std_ratio",
     "pair_accuracy", "pair_margin"}
)  # fmt: skip
_SAMPLES = frozenset({"scorer_errors", "samples_returned", "samples_dropped", "commits", "steps_redone"})
_SCORES = ("reward_", "exact_", EVALUATION)
_SECONDS = "_s"
_DOLLARS = "cost_"
_GIVEN = re.compile(r"_part_|\.")
"""A pattern in figures that end with a name given by the user: a part of a score, a tag of prompts."""

_REFUSED = re.compile(
    r"[^\w./ -]"
    r"|/(?=/|$)|(?<![^/])\.(?=\.?(?:/|$))"  # MLflow takes names for paths: none may be another's long form
    r"|-(?=u[0-9a-f]{4,6}-)"  # would be read as an escape
)
_MOST_CHARACTERS = 250
_SLUG_CHARACTERS = 40

_NEWER = f"""
    WITH paid AS (
        SELECT moment AS paid_at, sum(usd) FILTER (phase = 'evaluation') AS evaluation_usd,
            sum(sum(usd)) OVER (ORDER BY moment) AS total_usd
        FROM ({PAID}) GROUP BY moment
    ),
    drawn AS (
        SELECT 2 * iteration AS moment, count(*) AS images FROM samples
        WHERE run_id = $run AND moment > $after GROUP BY moment
    ),
    named AS (
        SELECT 2 * iteration AS moment, name, value FROM iteration_metrics WHERE run_id = $run
        UNION ALL SELECT 2 * iteration + 1, name, value FROM evaluation_metrics WHERE run_id = $run
    ),
    metrics AS (
        SELECT moment, map_from_entries(list((name, value) ORDER BY name)) AS own FROM named
        WHERE moment > $after GROUP BY moment
    )
    SELECT moment, ended_at, coalesce(own, MAP {{}}), score, exact,
        CASE WHEN paid_at = moment THEN coalesce(evaluation_usd, 0) ELSE 0 END, coalesce(total_usd, 0),
        coalesce(images, 0)
    FROM ({MOMENTS}) ASOF LEFT JOIN paid ON moment >= paid_at LEFT JOIN drawn USING (moment)
        LEFT JOIN metrics USING (moment)
    WHERE moment > $after ORDER BY moment
"""


@dataclass(frozen=True)
class Moment:
    """An iteration, or the evaluation after it, with the figures for readers.

    Attributes:
        number: its place in the run: twice the iteration, plus one for an evaluation.
        at: end of it, in Unix seconds.
        figures: values, by their names for readers.
    """

    number: int
    at: float
    figures: Mapping[str, float]


def moments_after(connection: RecordConnection, run_id: str, after: int) -> list[Moment]:
    """Return the iterations and evaluations of a run after a moment (-1: all), in order.

    They are without exact images if the reward gives no verdict.
    """
    verdicts = connection.execute(f"SELECT {VERDICTS} FROM runs WHERE run_id = ?", [run_id]).fetchall()
    unused = ("exact_share", f"{EVALUATION}exact") if verdicts == [(False,)] else ()
    rows = connection.execute(_NEWER, {"run": run_id, "after": after}).fetchall()
    found = []
    for number, at, own, score, exact, usd, total_usd, images in rows:
        if number % 2:
            own = {(EVALUATION if n.startswith("part_") else QUALITY_FIGURE) + n: v for n, v in own.items()}
            own |= {f"{EVALUATION}score": score, f"{EVALUATION}exact": exact, EVALUATION_USD: usd}
        else:  # some figures as other systems name and compute them, too
            if "clip_share" in own:
                own["clip_fraction"] = own["clip_share"]
            if own.get("groups"):
                own["zero_std_ratio"] = own.get("groups_dropped", 0.0) / own["groups"]
            for phase in ("rollout", "reward", "train", "iteration"):
                if images and f"{phase}_s" in own:
                    own[f"{IMAGE_MS}{phase}"] = 1000 * own[f"{phase}_s"] / images
        own[TOTAL_USD] = total_usd
        figures = {figure_name(name): value for name, value in own.items() if name not in unused}
        found.append(Moment(number, at, figures))
    return found


def last_moment(connection: RecordConnection, run_id: str, number: int, at: float) -> int:
    """Return the newest moment up to `number` that existed at a time (Unix seconds).

    It is an earlier one if that was discarded: repeated work ends later than everything recorded before.
    """
    [(last,)] = connection.execute(
        f"SELECT max(moment) FROM ({MOMENTS}) WHERE moment <= $number AND ended_at <= $at",
        {"run": run_id, "number": number, "at": at},
    ).fetchall()
    return -1 if last is None else last


def gallery(connection: RecordConnection, run_id: str, iteration: int) -> dict[str, bytes]:
    """Return the pictures (PNG; of clips WebP) of an evaluation, by a name that gives prompt and seed."""
    rows = connection.execute(
        "SELECT i.prompt_id, prompt, seed_index, png FROM evaluation_images i JOIN prompts p "
        "ON p.run_id = i.run_id AND p.prompt_id = i.prompt_id AND purpose = 'evaluate' "
        "WHERE i.run_id = $run AND i.iteration = $iteration AND png IS NOT NULL ORDER BY 1, 3",
        {"run": run_id, "iteration": iteration},
    ).fetchall()
    found = {}
    for prompt_id, prompt, seed_index, png in rows:
        slug = re.sub(r"[^A-Za-z0-9]+", "-", prompt).strip("-")[:_SLUG_CHARACTERS]
        found[f"held-out/{prompt_id + 1:03d}-{slug}-{seed_index}"] = png
    return found


def figure_name(figure: str) -> str:
    """Return a figure's name for readers, as in `score/reward_mean`, or `phase_s/train` for `train_s`."""
    if figure.endswith(_SECONDS) and not _GIVEN.search(figure):
        return plain(f"phase_s/{figure.removesuffix(_SECONDS)}")
    if figure.startswith(IMAGE_MS):
        return plain(figure)
    for prefix, section in ((_DOLLARS, "cost"), (QUALITY_FIGURE, "quality")):
        if figure.startswith(prefix):
            return plain(f"{section}/{figure.removeprefix(prefix)}")
    if figure.startswith(_SCORES):
        return plain(f"score/{figure}")
    section = "training" if figure in _TRAINING else "samples" if figure in _SAMPLES else "exploration"
    return plain(f"{section}/{figure}")


def plain(name: str) -> str:
    """Return a name in characters that every reader accepts; different names stay different.

    Others are escaped: `a:b` -> `a-u003a-b`. A name that is too long is cut and ends with its digest.
    """
    escaped = _REFUSED.sub(lambda found: f"-u{ord(found[0]):04x}-", name)
    if len(escaped) <= _MOST_CHARACTERS:
        return escaped
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{escaped[: _MOST_CHARACTERS - 9].rstrip('./')}-{digest}"
