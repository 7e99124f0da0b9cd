"""The rules of the page Health: the score's progress, the numerical health of training, the devices."""

from __future__ import annotations

import math

import numpy as np

from storage.environment import BEFORE_ROLLOUT, DRAFTS_ARE_MADE, clips_ratio
from storage.record.ledger import MOST_UNACCOUNTED
from storage.record.results import too_short
from ui.data.run import IDLE_SPOT_ADVICE
from ui.elements.formatting import figure, fine_percent, percent, short_duration
from ui.pages.health.findings import RECENT, Evidence, Finding, Judgement, Rule, judged

_FLAT_EVALUATIONS = 4
_FLAT = 0.01  # of score; a smaller gain over these evaluations is not a rise
_NO_VARIANCE = (0.25, 0.5)  # share of prompts: warning, problem
_CLIPPED = 0.5
_ERRORS = 0.05  # share of samples
_STEEP = 10.0  # times the usual gradient
_IDLE = 0.2  # of a market's paid time; more is a warning
_WAIT = 0.1  # of an iteration
_LOAD = 0.15  # of all paid time
_LOST = 0.05  # of all paid time
_CUT = 0.02  # of the paid spot time
_MOST_CANDIDATES = 4096
_MOST_NAMED = 4  # devices
_NO_ITERATION = "No iteration is done yet."
_LATEST = f"mean of the latest iterations, at most {RECENT}"
_NO_TIME = "No device time is recorded yet."


def score_course(evidence: Evidence) -> Judgement:
    """Check that the held-out score rises."""
    view = evidence.view
    scores = view.scores["score"].to_numpy(dtype=float)
    if view.change is None or len(scores) < 2:
        lacking = "no image that both evaluations judged" if len(scores) > 1 else "no second evaluation yet"
        return "unknown", f"There is {lacking} to compare with."
    if short := too_short(int(view.scores["iteration"].iloc[-1])):
        return "unknown", f"{short.capitalize()}."
    best = int(np.argmax(scores))
    lower_rate = f"ower `optimizer.learning_rate`{evidence.now('optimizer', 'learning_rate')}"
    text = f"{scores[0]:.2f} before training, {scores[-1]:.2f} now, {scores[best]:.2f} at best."
    if view.change.is_clear and view.change.mean < 0:
        advice = (
            f"{'Stop the run. ' if view.is_live else ''}L{lower_rate} and look at images on the page Images: "
            "the scorer may reward images that look wrong."
        )
        return "problem", f"{text} It is clearly worse than the untouched model.", advice
    if len(scores) - 1 - best >= 2 and scores[best] - scores[-1] > view.change.margin:
        advice = f"L{lower_rate}{', or end the run' if view.is_live else ''}."
        return "warning", f"{text} The best is {len(scores) - 1 - best} evaluations old.", advice
    if len(scores) > _FLAT_EVALUATIONS:
        gain = scores[-_FLAT_EVALUATIONS:].max() - scores[:-_FLAT_EVALUATIONS].max()
        each = evidence.money(view.paid_usd / max(1, len(view.metrics)))
        end = "end the run, or " if view.is_live else ""
        if gain < _FLAT:
            text = f"{text} The last {_FLAT_EVALUATIONS} evaluations brought {gain:+.3f}."
            return "warning", text, f"An iteration costs {each}; {end}give it harder prompts."
    return "passed", text


def zero_variance(evidence: Evidence) -> Judgement:
    """Check for prompt groups whose samples all score the same, which gives no gradient."""
    shares = evidence.view.learning_courses()["zero_variance"]
    shares = shares[np.isfinite(shares)]
    if not shares.size:
        return "unknown", _NO_ITERATION
    has_learned, shares = bool((shares < 1).any()), shares[-RECENT:]
    share = float(shares.mean())
    rewards = evidence.recent("reward_mean")
    mean = float(rewards.mean()) if rewards.size else 0.5
    if not has_learned:
        advice = (
            f"No iteration had a prompt with different scores, and the mean reward is {mean:.2f}: check the "
            "reward (`spotlight score`). If it is right, the prompts are too easy or too hard."
        )
    elif mean > 0.8:
        advice = f"The mean reward is {mean:.2f}: the prompts have become too easy; add harder ones."
    elif mean < 0.2:
        advice = (
            f"The mean reward is {mean:.2f}: the prompts are too hard; add easier ones, or learn from a "
            "graded score (`reward.signal=graded`)."
        )
    elif evidence.view.explores is False:
        advice = (
            "Exploration (`exploration.strategy=stale`) chooses seeds whose scores differ, but an iteration "
            "then trains on more samples and takes longer: it saves time on some tasks and costs time on "
            "others (docs/measurements.md). `spotlight compare-strategies` measures it on yours."
        )
    else:
        advice = "Raise `exploration.candidates` or `exploration.prompts` to choose among more."
    text = f"{percent(share)} of the prompts gave no signal ({_LATEST}): all their samples scored the same."
    return judged(share <= _NO_VARIANCE[0], text, advice, "problem" if share > _NO_VARIANCE[1] else "warning")


def ratio(evidence: Evidence) -> Judgement:
    """Check that the rollout and the training compute the same log-probabilities."""
    values = evidence.recent("ratio_deviation")
    if not values.size:
        return "unknown", _NO_ITERATION
    largest, limit = float(values.max()), evidence.view.number("algorithm", "ratio_tolerance")
    text = f"At most {figure(largest)} from 1" if largest else "Exactly 1"
    text = f"{text} in the last {len(values)} iterations"
    if limit is None:
        return "unknown", f"{text}; this run has no limit for it."
    return judged(
        largest <= limit / 2, f"{text} (limit {limit:g}).",
        "Rollout and training compute different log-probabilities: compare the workers' devices and "
        "versions. Do not raise the limit: training would follow the numerical error.",
        "problem" if largest > limit else "warning",
    )  # fmt: skip


def reward_gaming(evidence: Evidence) -> Judgement:
    """Check for reward hacking: a policy that leaves the reference while the score falls."""
    view = evidence.view
    course = view.learning_courses()["kl"]
    measured = course[np.isfinite(course)]
    if not measured.size:
        return "unknown", "Not measured: `algorithm.kl_weight` is 0."
    text = f"KL is {figure(float(measured[-1]))}, {figure(float(measured.max()))} at most."
    scores = view.scores["score"].to_numpy(dtype=float)
    if len(scores) < 3 or view.change is None:
        return "passed", text
    best = int(np.argmax(scores))
    before = course[view.metrics["iteration"].to_numpy() <= view.scores["iteration"].iloc[best]]
    at_best = before[np.isfinite(before)]
    fell = scores[best] - scores[-1] > view.change.margin
    if not (fell and at_best.size and measured[-1] > 2 * at_best[-1]):
        return "passed", text
    weight = f"raise `algorithm.kl_weight`{evidence.now('algorithm', 'kl_weight')}"
    text = f"{text} It has doubled since the best score, and the score has fallen."
    return "problem", text, f"The policy exploits the reward (reward hacking): {weight}."


def hacking(evidence: Evidence) -> Judgement:
    """Check for a score that rises while the images get worse, which is not a gain."""
    verdict = evidence.quality.verdict
    if verdict is None:
        return "unknown", "There is no second evaluation yet to compare images with."
    if not verdict.worse:
        count = len(verdict.others)
        return "passed", f"None of {count} figures of the held-out images is clearly worse than before."
    text = f"{verdict.in_words}."
    if not verdict.is_hacking:
        advice = f"Lower `optimizer.learning_rate`{evidence.now('optimizer', 'learning_rate')}."
        return "warning", f"{text} The images are worse, and the score is no better for it.", advice
    advice = (
        "The policy exploits the reward (reward hacking): compare the images on the page Images, raise "
        f"`algorithm.kl_weight`{evidence.now('algorithm', 'kl_weight')}"
        f"{', or end the run' if evidence.view.is_live else ''}; `evaluation.on_alarm` automates that."
    )
    return "problem", f"{text} The images get worse while the score rises.", advice


def clipping(evidence: Evidence) -> Judgement:
    """Check for clipped denoising steps, which give no gradient."""
    values = evidence.recent("clip_share")
    if not values.size:
        return "unknown", _NO_ITERATION
    share = float(values.mean())
    text = f"The clip range cuts off {percent(share)} of the trained denoising steps ({_LATEST})."
    rate = evidence.view.number("optimizer", "learning_rate")
    to = "" if rate is None else f" from {rate:g} to {rate / 2:g}"
    return judged(share <= _CLIPPED, text, f"Lower `optimizer.learning_rate`{to}.", "problem")


def gradients(evidence: Evidence) -> Judgement:
    """Check for an unusually large gradient: a sign of a bad batch or of divergence."""
    values, every = evidence.recent("gradient_norm"), evidence.view.metric("gradient_norm")
    if not values.size:
        return "unknown", _NO_ITERATION
    usual, latest = float(np.median(values)), float(values[-1])
    return judged(
        not np.isinf(every).any() and (usual <= 0 or latest <= _STEEP * usual),
        f"{figure(latest)} now, {figure(usual)} usually.",
        f"Lower `optimizer.max_grad_norm`{evidence.now('optimizer', 'max_grad_norm')} or "
        "`optimizer.learning_rate`.",
    )


def scorer(evidence: Evidence) -> Judgement:
    """Check for prompt groups with an unscored image, which are paid for but not trained on."""
    samples = evidence.ledger.samples
    if not samples:
        return "unknown", "No image has been scored yet."
    names = ("scorer_errors", "groups_failed", "groups")
    errors, failed, groups = (float(np.nansum(evidence.view.metric(name))) for name in names)
    text = f"It failed on {errors:.0f} of {samples:,} images."
    if not errors:
        return "passed", text
    return (
        "problem" if errors > _ERRORS * samples else "warning",
        f"{text} {failed:.0f} of {groups:.0f} prompt groups were not trained on because of it.",
        "The column `error` of the table `samples` gives the reason; a model can learn to cause such errors.",
    )


def stale_ranks(evidence: Evidence) -> Judgement:
    """Check that stale drafts rank the seeds as fresh scores do."""
    values = evidence.recent("spearman")
    if not values.size:
        return "unknown", "No iteration has compared the drafts' scores with newer ones yet."
    limit, median = evidence.view.rank_limit, float(np.median(values))
    return judged(
        median >= limit,
        f"Rank correlation {median:.2f} over the last {len(values)} iterations; the limit is {limit:g}.",
        "The policy moves too fast for its drafts: lower `optimizer.learning_rate`"
        f"{evidence.now('optimizer', 'learning_rate')}, or draft with `exploration.strategy=fresh`.",
        "problem",
    )


def spot_idle(evidence: Evidence) -> Judgement:
    """Check that spot devices do not idle while the reserved ones train."""
    idle = evidence.ledger.spot_idle_share
    if idle is None:
        return "unknown", "This run has no spot worker."
    spent = evidence.ledger.spent(market="spot", state="idle")
    paid = f"{short_duration(spent.device_s)}, {evidence.money(spent.usd)}"
    text = f"Spot devices were idle for {percent(idle)} of their paid time: {paid}"
    if idle <= _IDLE:
        return "passed", f"{text}."
    if not evidence.view.drafts_while_training:
        return "warning", f"{text}. They draft nothing while the reserved device trains.", IDLE_SPOT_ADVICE
    explore_s = evidence.ledger.spent(market="spot", state="explore").device_s
    factor = 1 + spent.device_s / explore_s if explore_s else math.inf
    drafts, candidates = (evidence.view.number("exploration", name) for name in ("drafts", "candidates"))
    if not explore_s:
        advice = "Nothing has been drafted yet; the page Seeds shows whether drafts arrive."
    elif drafts:
        advice = f"Raise `exploration.drafts` from {drafts:.0f} to {math.ceil(factor * drafts)}."
    elif candidates is None:
        advice = "Raise `exploration.candidates`."
    else:
        wanted = min(_MOST_CANDIDATES, math.ceil(factor * candidates))
        advice = f"Raise `exploration.candidates` from {candidates:.0f} to {wanted}."
    return "warning", f"{text}: the window is longer than exploration.", advice


def reserved_idle(evidence: Evidence) -> Judgement:
    """Check that reserved devices, the expensive ones, do not idle."""
    whole = evidence.ledger.spent(market="reserved")
    if not whole.device_s:
        return "unknown", "No reserved time is recorded yet."
    idle = evidence.ledger.spent(market="reserved", state="idle")
    share = idle.device_s / whole.device_s
    return judged(
        share <= _IDLE, f"Idle for {percent(share)} of their paid time: {evidence.money(idle.usd)}.",
        "The time line of the page Spot shows what they wait for. If it is scoring, raise "
        f"`runtime.scorer_workers`{evidence.now('runtime', 'scorer_workers')}; if it is the end of the "
        "rollout, add spot workers.",
    )  # fmt: skip


def exploration_wait(evidence: Evidence) -> Judgement:
    """Check that the rollout does not wait for its seeds."""
    waits, lasts = evidence.recent("explore_wait_s"), evidence.recent("iteration_s")
    if not waits.size or not lasts.size or np.median(lasts) <= 0:
        return "unknown", "This run does not explore, or has not yet."
    wait_s, share = float(np.median(waits)), float(np.median(waits) / np.median(lasts))
    text = f"The rollout waits {short_duration(wait_s)} for its seeds, {percent(share)} of an iteration."
    if BEFORE_ROLLOUT in evidence.view.row.environment.get(DRAFTS_ARE_MADE, ""):
        advice = "Fresh drafts are on the critical path; `exploration.strategy=stale` takes them off."
    elif evidence.view.setting("exploration", "stop_with_training") is False:
        advice = "Lower `exploration.drafts`, or set `exploration.stop_with_training=true`."
    else:
        advice = "Seeds were redrafted because stale drafts were not trusted: see the page Seeds."
    return judged(share <= _WAIT, text, advice)


def loading(evidence: Evidence) -> Judgement:
    """Check that loading new weights does not take too much time."""
    whole, load = evidence.ledger.spent(), evidence.ledger.spent(state="load")
    if not whole.device_s:
        return "unknown", _NO_TIME
    share = load.device_s / whole.device_s
    return judged(
        share <= _LOAD, f"Loading takes {percent(share)} of the paid time: {evidence.money(load.usd)}.",
        "Make iterations longer: raise `algorithm.prompts_per_iteration` or `algorithm.group_size`. In "
        "short runs, it is the start of the workers, which longer runs spread over more iterations.",
    )  # fmt: skip


def discarded_work(evidence: Evidence) -> Judgement:
    """Check for paid work that a resumed run repeated."""
    whole, lost = evidence.ledger.spent(), evidence.ledger.lost
    if not whole.device_s:
        return "unknown", _NO_TIME
    share = lost.device_s / whole.device_s
    every = evidence.view.number("checkpoint", "every")
    advice = "The events on the page Convergence show what ended the run; fix that first."
    if every is not None and every > 1:
        advice = f"Save more often: lower `checkpoint.every` (now {every:.0f}) to 1."
    text = f"{percent(share)} of the paid time was discarded: {evidence.money(lost.usd)}."
    return judged(share <= _LOST, text, advice)


def losses(evidence: Evidence) -> Judgement:
    """Check how much unsaved work was lost with devices."""
    ledger = evidence.ledger
    spot_s = ledger.spent(market="spot").device_s
    if not ledger.has_device_events or not spot_s:
        return "unknown", "This run does not record when spot devices come and go."
    cut_s = sum(loss.cut_s for loss in ledger.losses)
    steps = evidence.view.number("runtime", "commit_steps")
    now = f"now {steps:.0f}" if steps else "now 0: at least a second of work between two saves"
    return judged(
        cut_s / spot_s <= _CUT,
        f"Devices lost: {len(ledger.losses)}, with at most {short_duration(cut_s)} of work, "
        f"{percent(cut_s / spot_s)} of the paid spot time.",
        f"Save unfinished samples more often: set `runtime.commit_steps` to 1 ({now}).",
    )


def accounts(evidence: Evidence) -> Judgement:
    """Check that the states sum to the paid time, which is measured separately."""
    ledger = evidence.ledger
    if not ledger.is_measured:
        return "unknown", "This run did not measure its paid time separately from the states."
    return judged(
        ledger.is_balanced,
        "All paid time is accounted for." if ledger.is_balanced else
        f"The states differ from the measured paid time by {fine_percent(ledger.unaccounted_share)} (limit "
        f"{100 * MOST_UNACCOUNTED:g} %); {len(ledger.overlaps)} times a worker was in two states at once.",
        "The accounts on the page Spot show which worker it is; report it as a bug.", "problem",
    )  # fmt: skip


def starts(evidence: Evidence) -> Judgement:
    """Check that every configured device joins."""
    ledger = evidence.ledger
    if not ledger.has_device_events:
        return "unknown", "This run does not record when devices join."
    if missing := ledger.unjoined:
        names = ", ".join(device.device for device in missing[:_MOST_NAMED])
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        broken = [device for device in missing if device.failures]
        named = (broken or missing)[0]
        text = f"{names}{more} never joined. {named.device}: {named.reason}."
        if broken:
            advice = "Fix the cause on those machines; until then the other devices do all the work."
            return "problem", text, advice
        advice = "Add instances, or lower `runtime.spot_workers`; see docs/how-to/ray-cluster.md on labels."
        return "warning", text, advice
    if ledger.failed_starts:
        text = f"All devices joined; workers that ended while loading: {ledger.failed_starts}."
        return "warning", text, "The events on the page Convergence give the reasons."
    return "passed", "All devices joined, and none ended while loading."


def clock(evidence: Evidence) -> Judgement:
    """Check that the machine's clock does not jump during a run."""
    jumps = evidence.ledger.clock_jumps
    if not evidence.ledger.entries:
        return "unknown", _NO_TIME
    if not jumps:
        return "passed", "No jump of the wall clock is recorded."
    advice = (
        "Durations and costs are right; times of day in this run's records ignore the jump. Let a time "
        "service such as chrony slew the clock."
    )
    return "warning", f"Jumps: {len(jumps)}; the latest: {jumps[0]}.", advice


RULES: dict[Rule, str] = {
    score_course: "Held-out score",
    hacking: "Image quality",
    zero_variance: "Prompts without signal",
    ratio: "Ratio at the first update",
    reward_gaming: "KL to the reference",
    clipping: "Clipped denoising steps",
    gradients: "Gradient norm",
    scorer: "The scorer",
    stale_ranks: "Seeds ranked by older weights",
    spot_idle: "Idle spot devices",
    reserved_idle: "Idle reserved devices",
    exploration_wait: "Wait for exploration",
    loading: "Loading weights",
    starts: "Devices that join",
    losses: "Lost devices",
    discarded_work: "Discarded work",
    accounts: "The bill",
    clock: "The machine's clock",
}
"""The rules in display order, each with the title of its finding."""


def findings_of(evidence: Evidence) -> list[Finding]:
    """Return the findings of the rules that apply to the run's objective."""
    clips, findings = clips_ratio(evidence.view.row.environment), []
    for rule, title in RULES.items():
        if rule is not clipping or clips:
            level, *words = rule(evidence)
            findings.append(Finding(title, level, *words))
    return findings
