"""Rules about learning: the course of the score, and the numerical health of training."""

from __future__ import annotations

import numpy as np

from storage.environment import clips_ratio
from storage.record.results import too_short
from ui.data.run import RunView, explores, rank_limit
from ui.elements.formatting import figure, percent
from ui.pages.health.findings import RECENT, Evidence, Finding, Rule, judged

_FLAT_EVALUATIONS = 4
_FLAT = 0.01  # of score; a smaller gain over these evaluations is no rise
_NO_VARIANCE = (0.25, 0.5)  # share of prompts: warning, problem
_CLIPPED = 0.5
_ERRORS = 0.05  # share of samples
_STEEP = 10.0  # times the usual gradient


def score_course(evidence: Evidence) -> Finding:
    """Check that the held-out score rises."""
    title, view = "Held-out score", evidence.view
    scores = view.scores["score"].to_numpy(dtype=float)
    if view.change is None or len(scores) < 2:
        return Finding("unknown", title, "There is no second evaluation yet to compare with.")
    if short := too_short(int(view.scores["iteration"].iloc[-1])):
        return Finding("unknown", title, f"{short.capitalize()}.")
    best = int(np.argmax(scores))
    text = f"{scores[0]:.2f} before training, {scores[-1]:.2f} now, {scores[best]:.2f} at best."
    if view.change.is_clear and view.change.mean < 0:
        return Finding(
            "problem", title, f"{text} It is clearly worse than the untouched model.",
            f"{'Stop the run. ' if view.is_live else ''}Lower `optimizer.learning_rate`"
            f"{_now(evidence, 'optimizer', 'learning_rate')} and look at images on the page Images: the "
            "scorer may reward images that look wrong.",
        )  # fmt: skip
    if len(scores) - 1 - best >= 2 and scores[best] - scores[-1] > view.change.margin:
        return Finding(
            "warning", title, f"{text} The best is {len(scores) - 1 - best} evaluations old.",
            f"Lower `optimizer.learning_rate`{_now(evidence, 'optimizer', 'learning_rate')}"
            f"{', or end the run' if view.is_live else ''}.",
        )  # fmt: skip
    if len(scores) > _FLAT_EVALUATIONS:
        gain = scores[-_FLAT_EVALUATIONS:].max() - scores[:-_FLAT_EVALUATIONS].max()
        if gain < _FLAT:
            each = view.paid_usd / max(1, len(view.metrics))
            return Finding(
                "warning", title,
                f"{text} The last {_FLAT_EVALUATIONS} evaluations brought {gain:+.3f}.",
                f"An iteration costs {evidence.money(each)}; "
                f"{'end the run, or ' if view.is_live else ''}give it harder prompts.",
            )  # fmt: skip
    return Finding("passed", title, text)


def zero_variance(evidence: Evidence) -> Finding:
    """Check for prompt groups whose samples all score the same: they give no gradient."""
    title = "Prompts without signal"
    shares = evidence.view.learning_courses()["zero_variance"]
    shares = shares[np.isfinite(shares)][-RECENT:]
    if not shares.size:
        return Finding("unknown", title, "No iteration is done yet.")
    share = float(shares.mean())
    text = f"{percent(share)} of the prompts gave no signal: all their samples scored the same."
    rewards = evidence.recent("reward_mean")
    mean = float(rewards.mean()) if rewards.size else 0.5
    if mean > 0.8:
        advice = f"The mean reward is {mean:.2f}: the prompts have become too easy; add harder ones."
    elif mean < 0.2:
        advice = (
            f"The mean reward is {mean:.2f}: the prompts are too hard; add easier ones, or learn from a "
            "graded score (`reward.signal=graded`)."
        )
    elif explores(evidence.view) is False:
        advice = (
            "Exploration chooses seeds whose scores differ (`exploration.strategy=stale`), and an iteration "
            "then trains on more samples and takes longer: it saves time on some tasks and costs time on "
            "others (docs/measurements.md). `spotlight compare-strategies` measures it on yours."
        )
    else:
        advice = "Raise `exploration.candidates` or `exploration.prompts`, to choose among more."
    level = "problem" if share > _NO_VARIANCE[1] else "warning"
    return judged(share <= _NO_VARIANCE[0], title, text, advice, level)


def ratio(evidence: Evidence) -> Finding:
    """Check that the rollout and the training compute the same log-probabilities."""
    title, values = "Ratio at the first update", evidence.recent("ratio_deviation")
    if not values.size:
        return Finding("unknown", title, "No iteration is done yet.")
    largest, limit = float(values.max()), evidence.number("algorithm", "ratio_tolerance")
    text = f"At most {figure(largest)} from 1" if largest else "Exactly 1"
    text = f"{text} in the last {len(values)} iterations"
    if limit is None:
        return Finding("unknown", title, f"{text}; this run has no limit for it.")
    text = f"{text} (limit {limit:g})."
    return judged(
        largest <= limit / 2, title, text,
        "The rollout and the training compute different log-probabilities: compare devices and versions of "
        "the workers. Do not raise the limit: training would follow the numerical error.",
        "problem" if largest > limit else "warning",
    )  # fmt: skip


def reward_gaming(evidence: Evidence) -> Finding:
    """Check for a policy that moves away from the reference while the score falls: it exploits its reward."""
    title, view = "KL to the reference", evidence.view
    course = view.learning_courses()["kl"]
    measured = course[np.isfinite(course)]
    if not measured.size:
        return Finding("unknown", title, "Not measured: `algorithm.kl_weight` is 0.")
    text = f"KL is {figure(float(measured[-1]))}, {figure(float(measured.max()))} at most."
    scores = view.scores["score"].to_numpy(dtype=float)
    if len(scores) < 3 or view.change is None:
        return Finding("passed", title, text)
    best = int(np.argmax(scores))
    before = course[view.metrics["iteration"].to_numpy() <= view.scores["iteration"].iloc[best]]
    at_best = before[np.isfinite(before)]
    fell = scores[best] - scores[-1] > view.change.margin
    if fell and at_best.size and measured[-1] > 2 * at_best[-1]:
        return Finding(
            "problem", title, f"{text} It has doubled since the best score, and the score has fallen.",
            "The policy exploits the reward (reward hacking): raise `algorithm.kl_weight`"
            f"{_now(evidence, 'algorithm', 'kl_weight')}.",
        )  # fmt: skip
    return Finding("passed", title, text)


def hacking(evidence: Evidence) -> Finding:
    """Check for a score that rises while the images get worse, which is no gain."""
    title, verdict = "Image quality", evidence.quality.verdict
    if verdict is None:
        return Finding("unknown", title, "There is no second evaluation yet to compare images with.")
    if not verdict.worse:
        count = len(verdict.others)
        return Finding(
            "passed", title, f"Of {count} figures of the held-out images none is clearly worse than before."
        )
    text = f"{verdict.in_words}."
    if not verdict.is_hacking:
        return Finding(
            "warning", title, f"{text} The images are worse, and the score is no better for it.",
            f"Lower `optimizer.learning_rate`{_now(evidence, 'optimizer', 'learning_rate')}.",
        )  # fmt: skip
    return Finding(
        "problem", title, f"{text} The images get worse while the score rises.",
        "The policy exploits the reward (reward hacking): compare the images on the page Images, raise "
        f"`algorithm.kl_weight`{_now(evidence, 'algorithm', 'kl_weight')}"
        f"{', or end the run' if evidence.view.is_live else ''}; `evaluation.on_alarm` does that by itself.",
    )  # fmt: skip


def clipping(evidence: Evidence) -> Finding:
    """Check for clipped denoising steps: they give no gradient."""
    title = "Clipped denoising steps"
    values = evidence.recent("clip_share")
    if not values.size:
        return Finding("unknown", title, "No iteration is done yet.")
    share = float(values.mean())
    text = f"The clip range cuts off {percent(share)} of the trained denoising steps."
    rate = evidence.number("optimizer", "learning_rate")
    to = "" if rate is None else f" from {rate:g} to {rate / 2:g}"
    return judged(share <= _CLIPPED, title, text, f"Lower `optimizer.learning_rate`{to}.", "problem")


def gradients(evidence: Evidence) -> Finding:
    """Check for a gradient far above the usual ones: a sign of a bad batch, or of divergence."""
    title, values = "Gradient norm", evidence.recent("gradient_norm")
    every = evidence.view.metric("gradient_norm")
    if not values.size:
        return Finding("unknown", title, "No iteration is done yet.")
    usual, latest = float(np.median(values)), float(values[-1])
    text = f"{figure(latest)} now, {figure(usual)} usually."
    now = _now(evidence, "optimizer", "max_grad_norm")
    return judged(
        not np.isinf(every).any() and (usual <= 0 or latest <= _STEEP * usual), title, text,
        f"Lower `optimizer.max_grad_norm`{now} or `optimizer.learning_rate`.",
    )  # fmt: skip


def scorer(evidence: Evidence) -> Finding:
    """Check for prompt groups with an unscored image: they are paid for, and not trained on."""
    title, samples = "The scorer", evidence.ledger.samples
    if not samples:
        return Finding("unknown", title, "No image is scored yet.")
    errors = float(np.nansum(evidence.view.metric("scorer_errors")))
    text = f"It failed on {errors:.0f} of {samples:,} images."
    failed, groups = (float(np.nansum(evidence.view.metric(name))) for name in ("groups_failed", "groups"))
    if not errors:
        return Finding("passed", title, text)
    return Finding(
        "problem" if errors > _ERRORS * samples else "warning", title,
        f"{text} {failed:.0f} of {groups:.0f} prompt groups were not trained on because of it.",
        "The column `error` of the table `samples` gives the reason; a model can learn to cause such errors.",
    )  # fmt: skip


def stale_ranks(evidence: Evidence) -> Finding:
    """Check that stale drafts rank the seeds as fresh scores do."""
    title, values = "Seeds ranked by older weights", evidence.recent("spearman")
    if not values.size:
        return Finding("unknown", title, "No iteration has compared the drafts' scores with newer ones.")
    limit = rank_limit(evidence.view)
    median = float(np.median(values))
    text = f"Rank correlation {median:.2f} over the last {len(values)} iterations; the limit is {limit:g}."
    return judged(
        median >= limit, title, text,
        "The policy moves too fast for its drafts: lower `optimizer.learning_rate`"
        f"{_now(evidence, 'optimizer', 'learning_rate')}, or draft with `exploration.strategy=fresh`.",
        "problem",
    )  # fmt: skip


def _now(evidence: Evidence, section: str, name: str) -> str:
    value = evidence.number(section, name)
    return "" if value is None else f" (now {value:g})"


LEARNING_RULES: tuple[Rule, ...] = (
    score_course, hacking, zero_variance, ratio, reward_gaming, clipping, gradients, scorer, stale_ranks,
)  # fmt: skip


def rules_of(view: RunView) -> tuple[Rule, ...]:
    """Return the rules about what the run's objective has."""
    return tuple(rule for rule in LEARNING_RULES if rule is not clipping or clips_ratio(view.row.environment))
