"""What an answer of `spotlight what-if` says in words: where spot devices and exploration pay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_runtime.simulator.comparison.to_score import ExplorationWorth, discount_of

if TYPE_CHECKING:  # which says what is said here
    from tasks.what_if import WhatIf


def conclusions(result: WhatIf) -> list[str]:
    """What is better but only simulated, and from which discount spot devices and exploration pay."""
    found = _only_simulated_in_words(result)
    even, worth = result.break_even, result.exploration
    if even is not None:
        offered = discount_of(result.answers)
        if even.median <= 0:
            says = "Spot devices cost less than the same devices on demand even without a discount"
        elif even.median > 1:
            says = "Spot devices cost more than the same devices on demand even for nothing"
        else:
            says = (
                "Spot devices cost less than the same devices on demand from a discount of "
                f"{even.median:.0%} on (lowest and highest future {even.low:.0%} and {even.high:.0%})"
            )
        found.append(f"{says}; the discount is {offered:.0%}.")
    if worth is not None:
        found.append(_exploration_in_words(worth, result))
    return found + _milestones_in_words(result)


def dollars(usd: float) -> str:
    """An amount, with two digits at least."""
    return f"${usd:,.0f}" if usd >= 100 else f"${usd:.2f}" if usd >= 0.1 else f"${usd:.2g}"


def time_unit(seconds: float) -> tuple[str, float]:
    """How a time is written, and the seconds of its unit."""
    if seconds < 7200:
        return ("{:.1f} s", 1.0) if seconds < 120 else ("{:.1f} min", 60.0)
    return ("{:.1f} h", 3600.0) if seconds < 2 * 86400 else ("{:.1f} d", 86400.0)


def duration(seconds: float) -> str:
    """A time in one unit; minutes are whole."""
    form, unit = ("{:.0f} min", 60.0) if 120 <= seconds < 7200 else time_unit(seconds)
    return form.format(seconds / unit)


def _only_simulated_in_words(result: WhatIf) -> list[str]:
    """That a policy which no live run can follow is better than the one to take."""
    better, best = result.better_but_simulated, result.best
    if better is None:
        return []
    usd = dollars(better.figures["usd"].median)
    beside = f" instead of {dollars(best.figures['usd'].median)} of {best.policy.name}" if best else ""
    return [
        f"{better.policy.name} would cost the least, {usd}{beside}, but is only simulated: no live run has "
        f"{better.policy.only_simulated}."
    ]


def _milestones_in_words(result: WhatIf) -> list[str]:
    """What the best policy, and the cheapest one to the last score, take to shares of the progress."""
    live = [answer for answer in result.answers if answer.policy.only_simulated is None]
    found = {answer.policy.name: rows for answer in live if (rows := result.milestones(answer))}
    if result.curves is None or not found:
        return []
    # Of run seeds that mostly end below the last score, the dollars to it are not known.
    known = [name for name, rows in found.items() if 2 * rows[-1].unreached < rows[-1].run_seeds]
    cheapest = min(known, key=lambda name: found[name][-1].usd, default="")
    best = result.best.policy.name if result.best else ""
    said = []
    for name in dict.fromkeys([best, cheapest]):
        if not (rows := found.get(name)):
            continue
        shares = " / ".join(f"{each.share * 100:.0f}" for each in rows)
        time = " / ".join(("≥" if each.unreached else "") + duration(each.time_s) for each in rows)
        usd = " / ".join(("≥" if each.unreached else "") + dollars(each.usd) for each in rows)
        least = ""
        if name == cheapest and len(known) > 1:
            least = ", the fewest dollars of those most of whose run seeds get there"
        said.append(
            f"{name} takes {time} and {usd} to {shares} % of the baseline's progress by the curves "
            f"{result.curves.name}{least}."
        )
    return said


def _exploration_in_words(worth: ExplorationWorth, result: WhatIf) -> str:
    low, needed, high = (
        f"{max(0.0, share):.0%}"
        for share in (worth.saving_needed.low, worth.saving_needed.median, worth.saving_needed.high)
    )
    says = f"An iteration with exploration beside training costs no more than one of {worth.cheapest}"
    if high != "0%":
        says = (
            f"Exploration beside training costs less than {worth.cheapest} if it saves more than {needed} "
            f"of the iterations ({low} to {high})"
        )
    until, curves = worth.pays_until_usd, result.curves
    if curves is None or worth.known_to is None or (until is None and worth.stops_at is None):
        return f"{says}."
    if worth.known_to == 1:
        level = f"the baseline's last score, {curves.target:.3g}"
    else:
        level = (
            f"{worth.known_to:.0%} of the baseline's progress, a score of {worth.known_to_score:.3g} (most "
            "of their explored runs end there)"
        )
    if worth.stops_at is None:
        says += f"; by the curves {curves.name} it pays up to {level}"
    else:
        says += (
            f"; by the curves {curves.name}, known up to {level}, it stops paying from "
            f"{worth.stops_at:.0%} of the baseline's progress on, a score of {worth.stops_at_score:.3g}"
        )
    if until is None or worth.stops_at is not None:
        return f"{says}."
    live = [answer for answer in result.answers if answer.policy.only_simulated is None]
    sized = any(any(run.wanted for run in answer.runs) for answer in live)
    but = " (against policies other than sized, whose devices depend on it)" if sized else ""
    if until.median >= result.offer.reserved_usd_per_hour:
        return f"{says}. So far it pays at any price of a spot device up to that of a reserved one{but}."
    if until.median == 0:
        return f"{says}. So far it pays at no price of a spot device{but}."
    return (
        f"{says}. So far it pays up to ${until.median:.2f} an hour of a spot device "
        f"({until.low:.2f} to {until.high:.2f}){but}."
    )
