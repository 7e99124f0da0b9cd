"""Rules about the devices: idle time, waits and losses."""

from __future__ import annotations

import math

import numpy as np

from storage.ledger.ledger import MOST_UNACCOUNTED
from ui.data.run import IDLE_SPOT_ADVICE, drafts_before_rollout, drafts_while_training
from ui.elements.formatting import fine_percent, percent, short_duration
from ui.pages.health.findings import Evidence, Finding, Rule, judged

_IDLE = 0.2  # of a market's paid time; more is a warning
_WAIT = 0.1  # of an iteration
_LOAD = 0.15  # of all paid time
_LOST = 0.05  # of all paid time
_CUT = 0.02  # of the paid spot time
_MOST_CANDIDATES = 4096
_MOST_NAMED = 4  # devices


def spot_idle(evidence: Evidence) -> Finding:
    """Check that spot devices do not idle while the reserved ones train."""
    title, ledger = "Idle spot devices", evidence.ledger
    idle = ledger.spot_idle_share
    if idle is None:
        return Finding("unknown", title, "This run has no spot worker.")
    spent = ledger.spent(market="spot", state="idle")
    paid = f"{short_duration(spent.device_s)}, {evidence.money(spent.usd)}"
    text = f"Spot idle {percent(idle)} of its paid time: {paid}"
    if idle <= _IDLE:
        return Finding("passed", title, f"{text}.")
    if not drafts_while_training(evidence.view):
        return Finding(
            "warning", title, f"{text}. Nothing is drafted while the reserved device trains.",
            IDLE_SPOT_ADVICE,
        )  # fmt: skip
    return Finding(
        "warning", title, f"{text}: the window is longer than exploration.", _more_drafts(evidence)
    )


def _more_drafts(evidence: Evidence) -> str:
    """Return the setting, with a value, that fills the window."""
    idle_s = evidence.ledger.spent(market="spot", state="idle").device_s
    explore_s = evidence.ledger.spent(market="spot", state="explore").device_s
    if not explore_s:
        return "Nothing was drafted yet; the page Seeds shows whether drafts arrive."
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
    """Check that reserved devices, the expensive ones, do not idle."""
    title, ledger = "Idle reserved devices", evidence.ledger
    whole, idle = ledger.spent(market="reserved"), ledger.spent(market="reserved", state="idle")
    if not whole.device_s:
        return Finding("unknown", title, "No reserved time is recorded yet.")
    share = idle.device_s / whole.device_s
    text = f"Reserved idle {percent(share)} of its paid time: {evidence.money(idle.usd)}."
    workers = evidence.number("runtime", "scorer_workers")
    now = "" if workers is None else f" (now {workers:.0f})"
    return judged(
        share <= _IDLE, title, text,
        "The time line of the page Spot shows what it waits for. Where that is scoring, raise "
        f"`runtime.scorer_workers`{now}; where it is the end of the rollout, add spot workers.",
    )  # fmt: skip


def exploration_wait(evidence: Evidence) -> Finding:
    """Check that the rollout does not wait for its seeds."""
    title = "Wait for exploration"
    waits, lasts = evidence.recent("explore_wait_s"), evidence.recent("iteration_s")
    if not waits.size or not lasts.size or np.median(lasts) <= 0:
        return Finding("unknown", title, "This run has not explored yet, or does not.")
    wait_s, share = float(np.median(waits)), float(np.median(waits) / np.median(lasts))
    text = f"The rollout waits {short_duration(wait_s)} for its seeds, {percent(share)} of an iteration."
    if drafts_before_rollout(evidence.view):
        advice = "Fresh drafts are on the critical path; `exploration.strategy=stale` takes them off it."
    elif evidence.view.setting("exploration", "stop_with_training") is False:
        advice = "Lower `exploration.drafts`, or set `exploration.stop_with_training=true`."
    else:
        advice = "Drafts were drawn again because stale ones were not trusted: see the page Seeds."
    return judged(share <= _WAIT, title, text, advice)


def loading(evidence: Evidence) -> Finding:
    """Check that new weights do not take longer to load than they are worth."""
    title, whole = "Loading weights", evidence.ledger.spent()
    if not whole.device_s:
        return Finding("unknown", title, "No device time is recorded yet.")
    load = evidence.ledger.spent(state="load")
    share = load.device_s / whole.device_s
    text = f"Loading takes {percent(share)} of the paid time: {evidence.money(load.usd)}."
    return judged(
        share <= _LOAD, title, text,
        "Make iterations longer: raise `algorithm.prompts_per_iteration` or `algorithm.group_size`. With "
        "short runs it is the start of the workers, which longer ones spread over more iterations.",
    )  # fmt: skip


def repeated_work(evidence: Evidence) -> Finding:
    """Check for paid work that a resumed run repeated."""
    title, whole, lost = "Repeated work", evidence.ledger.spent(), evidence.ledger.lost
    if not whole.device_s:
        return Finding("unknown", title, "No device time is recorded yet.")
    share = lost.device_s / whole.device_s
    text = f"{percent(share)} of the paid time went into discarded work: {evidence.money(lost.usd)}."
    every = evidence.number("checkpoint", "every")
    advice = "The events of the page Convergence say what ended the run; fix that first."
    if every is not None and every > 1:
        advice = f"Save more often: lower `checkpoint.every` (now {every:.0f}) to 1."
    return judged(share <= _LOST, title, text, advice)


def losses(evidence: Evidence) -> Finding:
    """Check how much unsaved work was lost with devices."""
    title, ledger = "Lost devices", evidence.ledger
    spot_s = ledger.spent(market="spot").device_s
    if not ledger.has_device_events or not spot_s:
        return Finding("unknown", title, "This run records no spot devices that come and go.")
    cut_s = sum(loss.cut_s for loss in ledger.losses)
    text = (
        f"{len(ledger.losses)} devices were lost, and with them at most {short_duration(cut_s)} of work, "
        f"{percent(cut_s / spot_s)} of the paid spot time."
    )
    steps = evidence.number("runtime", "commit_steps")
    now = f"now {steps:.0f}" if steps else "now 0: at least a second of work between two saves"
    return judged(
        cut_s / spot_s <= _CUT, title, text,
        f"Save unfinished samples more often: set `runtime.commit_steps` to 1 ({now}).",
    )  # fmt: skip


def accounts(evidence: Evidence) -> Finding:
    """Check that the states sum to the paid time, which is measured separately."""
    title, ledger = "The bill", evidence.ledger
    if not ledger.is_measured:
        return Finding("unknown", title, "This run did not measure its paid time apart from the states.")
    if ledger.is_balanced:
        return Finding("passed", title, "All paid time is accounted for.")
    return Finding(
        "problem", title,
        f"The states differ from the measured paid time by {fine_percent(ledger.unaccounted_share)} (limit "
        f"{100 * MOST_UNACCOUNTED:g} %); {len(ledger.overlaps)} times a worker was in two states at once.",
        "The accounts on the page Spot show which worker; report it as a fault.",
    )  # fmt: skip


def starts(evidence: Evidence) -> Finding:
    """Check that every device of the settings joins."""
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
            return Finding(
                "problem",
                title,
                text,
                "Repair the cause on those machines; until then the other devices do all the work.",
            )
        return Finding(
            "warning",
            title,
            text,
            "Add instances, or lower `runtime.spot_workers`; see docs/how-to/ray-cluster.md on labels.",
        )
    if ledger.failed_starts:
        text = f"All devices joined, but {ledger.failed_starts} workers ended while they loaded."
        return Finding("warning", title, text, "The events of the page Convergence name the reasons.")
    return Finding("passed", title, "All devices joined, and none ended while it loaded.")


def clock(evidence: Evidence) -> Finding:
    """Check that the machine's clock is not set during a run."""
    title, jumps = "The machine's clock", evidence.ledger.clock_jumps
    if not evidence.ledger.entries:
        return Finding("unknown", title, "No device time is recorded yet.")
    if not jumps:
        return Finding("passed", title, "No jump of the wall clock is recorded.")
    return Finding(
        "warning", title, f"{len(jumps)} jumps, the latest: {jumps[0]}.",
        "Durations and costs are right; times of day in this run's records are as before the jump. Let a "
        "time service such as chrony slew the clock.",
    )  # fmt: skip


DEVICE_RULES: tuple[Rule, ...] = (
    spot_idle, reserved_idle, exploration_wait, loading, starts, losses, repeated_work, accounts, clock,
)  # fmt: skip
