"""Compares a run with the reference it reproduces: same bits, within an interval, or drifted, and why."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from storage.environment import CODE_DIGESTS, DEVICES, PRESET, PURPOSE, REPEATED
from storage.evaluations.figures import Estimate, over_seeds
from storage.evaluations.reproductions import Reference, Verdict

_DEVICE = ("machine", "processor", "accelerators", DEVICES)
_DATA = "digest "
_CODE = "commit"
_MAY_LACK = (DEVICES, *CODE_DIGESTS, *REPEATED)
_SHOWN_PROMPTS = 5
_IGNORED_SETTINGS = {"runtime.cluster", "tracking.to", "tracking.uri"}
"""Settings for where a run computes and is copied to; they do not change its results."""

Difference = dict[str, str]
"""One difference: `kind`, `what`, `was`, `is`."""


@dataclass(frozen=True)
class Comparison:
    """The result of the comparison.

    Attributes:
        interval: interval of the paired differences (now minus then) in the last evaluation that both have;
            None with fewer than two prompts.
        causes: differences that may have changed the outcome.
        results: differences in the outcome.
    """

    verdict: Verdict
    message: str
    interval: Estimate | None
    causes: list[Difference]
    results: list[Difference]


def compare(was: Reference, now: Reference, tolerance: float) -> Comparison:
    """Compare a run with its reference.

    On the same kind of device, any changed bit is a drift. Rounding differs on another kind of device, or if
    measured times choose how many devices share a sample; then a run passes if the interval of the paired
    differences in held-out scores contains zero and their mean is at most `tolerance`.

    Args:
        tolerance: largest mean difference that passes if bits may differ.
    """
    causes = [
        *_environment(was.environment, now.environment),
        *_configuration(was.config, now.config),
        *_prompts(was, now),
    ]
    results, (interval, pairs) = [*_results(was, now)], paired_interval(was, now)
    verdict: Verdict = "drifted"
    if not results:
        compared = f"{len(now.digests)} files of weights and {sum(map(len, now.scores.values()))} held-out"
        others = f", although these differ: {_names(causes)}" if causes else ""
        verdict, message = "identical", f"bit-identical: {compared} scores{others}"
    elif not (why := _why_bits_may_differ(was, now)):
        message = _drifted(causes, results)
    elif interval is None:
        message = f"{why}: no held-out scores to compare; {_drifted(causes, results)}"
    else:
        said = (
            f"held-out score differs by {interval.mean:+.4f}, 95 % interval {interval.low:+.4f} to "
            f"{interval.high:+.4f} over {pairs} pairs, tolerance {tolerance:g}"
        )
        message = f"{why}: {said}; {_drifted(causes, results)}"
        if interval.low <= 0 <= interval.high and abs(interval.mean) <= tolerance:
            verdict, message = "within", f"{why}, other bits, the same scores: {said}"
    return Comparison(verdict, message, interval, causes, results)


def paired_interval(was: Reference, now: Reference) -> tuple[Estimate | None, int]:
    """Return the mean difference of held-out scores at the last evaluation of both, and the pairs.

    None if fewer than two prompts have pairs, because a single one has no spread.
    """
    both = was.scores.keys() & now.scores.keys()
    if not both:
        return None, 0
    last = max(both)
    then = {(one.prompt_id, one.seed_index): one.score for one in was.scores[last]}
    texts = now.prompts.get("evaluate", {})
    of_prompt: defaultdict[str | int, list[float]] = defaultdict(list)  # rows of the same text are one prompt
    for one in now.scores[last]:
        if (one.prompt_id, one.seed_index) in then:
            gap = one.score - then[one.prompt_id, one.seed_index]
            of_prompt[texts.get(one.prompt_id, one.prompt_id)].append(gap)
    pairs = sum(map(len, of_prompt.values()))
    if len(of_prompt) < 2:
        return None, pairs
    return over_seeds([*map(statistics.fmean, of_prompt.values())], lowest=-1.0), pairs


def _why_bits_may_differ(was: Reference, now: Reference) -> str:
    """Return why a run's bits may differ without a drift; empty if they may not."""
    if _device_kind(was.environment) != _device_kind(now.environment):
        return "another kind of device"
    if any(run.run_config.sequence_parallel.is_measured for run in (was, now)):
        return "degrees chosen by measured times (sequence_parallel is auto)"
    return ""


def _device_kind(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the facts that bits depend on, without the number of cores."""
    architecture = environment.get("machine", "").partition(",")[0]
    return (architecture, environment.get("processor", ""), environment.get("accelerators", ""))


def _environment(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Difference]:
    for name in sorted(was.keys() | now.keys()):
        before, after = was.get(name, "not recorded"), now.get(name, "not there")
        # Neither rescoring nor earlier versions record all of these.
        is_missing = name in _MAY_LACK and not (name in was and name in now)
        if before == after or name in (PRESET, PURPOSE) or is_missing:
            continue
        if name.startswith(_DATA):
            yield _difference("data", f"SHA-256 of {name.removeprefix(_DATA)}", before[:12], after[:12])
        else:
            kind = "device" if name in _DEVICE else "code" if name == _CODE else "versions"
            yield _difference(kind, name, before, after)


def _configuration(was: Mapping[str, Any], now: Mapping[str, Any], section: str = "") -> Iterator[Difference]:
    for name in sorted(was.keys() | now.keys()):
        key, before, after = f"{section}{name}", was.get(name), now.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _configuration(before, after, f"{key}.")
        elif before != after and key not in _IGNORED_SETTINGS:
            yield _difference("configuration", key, before, after)


def _prompts(was: Reference, now: Reference) -> Iterator[Difference]:
    """Yield prompts with the same number but different text; a run may have used only some numbers."""
    for purpose, words in (("train", "training prompt"), ("evaluate", "held-out prompt")):
        before, after = was.prompts.get(purpose, {}), now.prompts.get(purpose, {})
        others = [
            number for number in sorted(before.keys() & after.keys()) if before[number] != after[number]
        ]
        for number in others[:_SHOWN_PROMPTS]:
            yield _difference("data", f"{words} {number + 1}", before[number], after[number])
        if len(others) > _SHOWN_PROMPTS:
            rest = len(others) - _SHOWN_PROMPTS
            yield _difference("data", f"{words}s", f"{rest} more", "others")


def _results(was: Reference, now: Reference) -> Iterator[Difference]:
    for iteration in sorted(was.rewards.keys() | now.rewards.keys()):
        before, after = was.rewards.get(iteration), now.rewards.get(iteration)
        if before != after:  # the difference explains later ones
            yield _difference("result", f"mean reward, first in iteration {iteration}", before, after)
            break
    for iteration in sorted(was.scores.keys() | now.scores.keys()):
        before, after = was.scores.get(iteration, []), now.scores.get(iteration, [])
        if before != after:
            then = {(one.prompt_id, one.seed_index): one for one in before}
            same = sum(then.get((one.prompt_id, one.seed_index)) == one for one in after)
            others = max(len(before), len(after)) - same
            what = f"held-out scores after iteration {iteration} ({others} images differ)"
            means = (sum(one.score for one in some) / len(some) if some else None for some in (before, after))
            yield _difference("result", what, *means)
    for name in sorted(was.digests.keys() | now.digests.keys()):
        before, after = was.digests.get(name, "none"), now.digests.get(name, "none")
        if before != after:
            yield _difference("result", f"SHA-256 of {name}", before[:12], after[:12])


def _drifted(causes: list[Difference], results: list[Difference]) -> str:
    some = f"{len(results)} results differ, such as" if len(results) > 1 else "1 result differs:"
    came_out = f"{some} the {_name(results[0])}"
    if not causes:
        return f"{came_out}; no recorded fact differs, so the run itself is not repeatable"
    return f"{came_out}; what differs: {_names(causes)}"


def _names(differences: list[Difference]) -> str:
    return "; ".join(f"{one['kind']}: {_name(one)}" for one in differences)


def _name(difference: Difference) -> str:
    return f"{difference['what']} was {difference['was']}, is {difference['is']}"


def _difference(kind: str, what: str, was: object, now: object) -> Difference:
    """Return a difference with both values as text; numbers get enough digits to show that they differ."""
    before, after = str(was), str(now)
    if isinstance(was, float) and isinstance(now, float):
        shorter = ((f"{was:.{digits}g}", f"{now:.{digits}g}") for digits in (4, 8, 12))
        before, after = next((pair for pair in shorter if pair[0] != pair[1]), (before, after))
    return {"kind": kind, "what": what, "was": before, "is": after}
