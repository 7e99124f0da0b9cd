"""Rules about the devices: do they earn their keep, what do they wait for, what was lost."""

from __future__ import annotations

import math

import numpy as np

from storage.ledger.ledger import MOST_UNACCOUNTED
from ui.findings import Evidence, Finding, Rule
from ui.formatting import percent, short_duration, usd

_IDLE = 0.2  # of a market's paid time; more is worth a look
_WAIT = 0.1  # of an iteration
_LOAD = 0.15  # of all paid time
_LOST = 0.05  # of all paid time
_CUT = 0.02  # of the paid spot time
_MOST_CANDIDATES = 4096
_MOST_NAMED = 4  # devices


def spot_idle(evidence: Evidence) -> Finding:
    """Spot devices should not idle while the reserved ones train."""
    title, ledger = "Spot devices at work", evidence.ledger
    idle = ledger.spot_idle_share
    if idle is None:
        return Finding("unknown", title, "This run has no spot worker.")
    spent = ledger.spent(market="spot", state="idle")
    text = f"Spot idle {percent(idle)} of its paid time: {short_duration(spent.device_s)}, {usd(spent.usd)}"
    if idle <= _IDLE:
        return Finding("fine", title, f"{text}.")
    strategy = evidence.view.setting("exploration", "strategy")
    if strategy != "stale":
        return Finding(
            "look", title, f"{text}. Nothing is drafted while the reserved device trains.",
            "Let spot devices draft seeds meanwhile: `exploration.strategy=stale`.",
        )  # fmt: skip
    return Finding("look", title, f"{text}: the window is longer than exploration.", _more_drafts(evidence))


def _more_drafts(evidence: Evidence) -> str:
    """Which setting fills the window, and to what."""
    idle_s = evidence.ledger.spent(market="spot", state="idle").device_s
    explore_s = evidence.ledger.spent(market="spot", state="explore").device_s
    if not explore_s:
        return "Nothing was drafted yet; the page Seeds says whether drafts come."
    factor = 1 + idle_s / explore_s
    drafts = evidence.number("exploration", "drafts")
    if drafts:
        return f"Raise `exploration.drafts` from {drafts:.0f} to {math.ceil(factor * drafts)}."
    candidates = evidence.number("exploration", "candidates")
    if candidates is None:
        return "Raise `exploration.candidates`."
    wanted = min(_MOST_CANDIDATES, math.ceil(factor * candidates))
    return f"Raise `exploration.candidates` from {candidates:.0f} to {wanted}."


def reserved_idle(evidence: Evidence) -> Finding:
    """The reserved devices are the dear ones."""
    title, ledger = "Reserved devices at work", evidence.ledger
    whole, idle = ledger.spent(market="reserved"), ledger.spent(market="reserved", state="idle")
    if not whole.device_s:
        return Finding("unknown", title, "No reserved time is recorded yet.")
    share = idle.device_s / whole.device_s
    text = f"Reserved idle {percent(share)} of its paid time: {usd(idle.usd)}."
    if share <= _IDLE:
        return Finding("fine", title, text)
    workers = evidence.number("runtime", "scorer_workers")
    now = "" if workers is None else f" (now {workers:.0f})"
    return Finding(
        "look", title, text,
        "The time line of the page Spot shows what it waits for. Where that is scoring, raise "
        f"`runtime.scorer_workers`{now}; where it is the end of the rollout, add spot workers.",
    )  # fmt: skip


def exploration_wait(evidence: Evidence) -> Finding:
    """The rollout should not wait for its seeds."""
    title = "Waiting for seeds"
    waits, lasts = evidence.recent("explore_wait_s"), evidence.recent("iteration_s")
    if not waits.size or not lasts.size or np.median(lasts) <= 0:
        return Finding("unknown", title, "This run has not explored yet, or does not.")
    wait_s, share = float(np.median(waits)), float(np.median(waits) / np.median(lasts))
    text = f"The rollout waits {short_duration(wait_s)} for its seeds, {percent(share)} of an iteration."
    if share <= _WAIT:
        return Finding("fine", title, text)
    if evidence.view.setting("exploration", "strategy") == "fresh":
        advice = "Fresh drafts are on the critical path; `exploration.strategy=stale` takes them off it."
    elif evidence.view.setting("exploration", "stop_with_training") is False:
        advice = "Lower `exploration.drafts`, or set `exploration.stop_with_training=true`."
    else:
        advice = "Drafts were drawn anew because stale ones were not trusted: see the page Seeds."
    return Finding("look", title, text, advice)


def loading(evidence: Evidence) -> Finding:
    """New weights should not take longer to load than they are worth."""
    title, whole = "Loading weights", evidence.ledger.spent()
    if not whole.device_s:
        return Finding("unknown", title, "No device time is recorded yet.")
    load = evidence.ledger.spent(state="load")
    share = load.device_s / whole.device_s
    text = f"Loading takes {percent(share)} of the paid time: {usd(load.usd)}."
    if share <= _LOAD:
        return Finding("fine", title, text)
    return Finding(
        "look", title, text,
        "Make iterations longer: raise `algorithm.prompts_per_iteration` or `algorithm.group_size`. With "
        "short runs it is the start of the workers, which longer ones spread over more iterations.",
    )  # fmt: skip


def work_done_again(evidence: Evidence) -> Finding:
    """Paid work that a resumed run did again."""
    title, whole, lost = "Work done again", evidence.ledger.spent(), evidence.ledger.lost
    if not whole.device_s:
        return Finding("unknown", title, "No device time is recorded yet.")
    share = lost.device_s / whole.device_s
    text = f"{percent(share)} of the paid time was thrown away and done again: {usd(lost.usd)}."
    if share <= _LOST:
        return Finding("fine", title, text)
    every = evidence.number("checkpoint", "every")
    if every is not None and every > 1:
        return Finding("look", title, text, f"Save oftener: lower `checkpoint.every` (now {every:.0f}) to 1.")
    return Finding(
        "look", title, text, "The events of the page Convergence say what ended the run; mend that first."
    )


def losses(evidence: Evidence) -> Finding:
    """What lost devices took with them."""
    title, ledger = "Lost devices", evidence.ledger
    spot_s = ledger.spent(market="spot").device_s
    if not ledger.has_device_events or not spot_s:
        return Finding("unknown", title, "This run records no spot devices that come and go.")
    cut_s = sum(loss.cut_s for loss in ledger.losses)
    text = (
        f"{len(ledger.losses)} devices were lost; they took at most {short_duration(cut_s)} of work with "
        f"them, {percent(cut_s / spot_s)} of the paid spot time."
    )
    if cut_s / spot_s <= _CUT:
        return Finding("fine", title, text)
    steps = evidence.number("runtime", "commit_steps")
    now = f"now {steps:.0f}" if steps else "now 0: at least a second of work between two saves"
    return Finding(
        "look", title, text, f"Save unfinished samples oftener: set `runtime.commit_steps` to 1 ({now})."
    )


def accounts(evidence: Evidence) -> Finding:
    """The states must sum to the paid time, which is measured apart from them."""
    title, ledger = "The bill", evidence.ledger
    if not ledger.is_measured:
        return Finding("unknown", title, "No paid time was measured apart from the states.")
    text = (
        f"The states differ from the paid time, which is measured apart, by "
        f"{100 * ledger.unaccounted_share:.2g} % (at most {100 * MOST_UNACCOUNTED:g} % is allowed); "
        f"{len(ledger.overlaps)} times a worker was in two states."
    )
    if ledger.is_balanced:
        return Finding("fine", title, text)
    return Finding(
        "act", title, text, "The accounts on the page Spot show which worker; report it as a fault."
    )


def starts(evidence: Evidence) -> Finding:
    """Every device of the settings should join."""
    title, ledger = "Devices that join", evidence.ledger
    if not ledger.has_device_events:
        return Finding("unknown", title, "This run records no devices that join.")
    missing = ledger.unjoined
    if missing:
        names = ", ".join(device.device for device in missing[:_MOST_NAMED])
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        broken = [device for device in missing if device.failures]
        named = (broken or missing)[0]
        text = f"{names}{more} never joined. {named.device}: {named.reason}."
        if broken:
            return Finding("act", title, text, "Repair what it names on those machines; the others do all.")
        return Finding(
            "look", title, text, "Add instances, or lower `runtime.spot_workers`; see docs/spot.md on labels."
        )
    if ledger.failed_starts:
        text = f"All devices joined, but {ledger.failed_starts} workers ended while they loaded."
        return Finding("look", title, text, "The events of the page Convergence name the reasons.")
    return Finding("fine", title, "All devices joined, and none ended while it loaded.")


def clock(evidence: Evidence) -> Finding:
    """The machine's clock should not be set in the midst of a run."""
    title, jumps = "The machine's clock", evidence.ledger.clock_jumps
    if not evidence.ledger.entries:
        return Finding("unknown", title, "No device time is recorded yet.")
    if not jumps:
        return Finding("fine", title, "No jump of the wall clock is recorded.")
    return Finding(
        "look", title, f"{len(jumps)} jumps, the latest: {jumps[0]}.",
        "Durations and costs are right; times of day in this run's records are as before the jump. Let a "
        "time service such as chrony slew the clock.",
    )  # fmt: skip


DEVICE_RULES: tuple[Rule, ...] = (
    spot_idle, reserved_idle, exploration_wait, loading, starts, losses, work_done_again, accounts, clock,
)  # fmt: skip
