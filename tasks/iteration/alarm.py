"""The response to a rising score with deteriorating images.

Everything is a function of the recorded evaluations, so a resumed run responds like the interrupted one and
has the same weights; no state is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import HackingError
from storage.evaluations.quality import SCORE, QualityVerdict, figure_changes, quality_verdict
from storage.record.queries.images import paired_figures
from storage.record.results import held_out_curve
from tasks.iteration.session import Session


@dataclass(frozen=True)
class Answer:
    """The response to an evaluation, with a message to the user if there is news.

    Attributes:
        returned: True if the weights are now those of an earlier checkpoint, which voids drafts.
    """

    message: str | None = None
    returned: bool = False


def take_up(session: Session) -> None:
    """Restore the alarm state of a resumed run from its evaluations before the last finished iteration."""
    recorded = dict(held_out_curve(session.store, session.run_id))
    before = sorted(number for number in recorded if 0 < number < session.first_iteration - 1)
    for iteration in before[-1:] if session.config.evaluation.on_alarm == "warn" else before:
        verdict = _verdict(session, iteration)
        is_hacking = verdict is not None and verdict.is_hacking
        session.alarm = session.alarm.after(iteration, is_hacking, _has_collapsed(session, iteration))
    if session.config.evaluation.on_alarm == "kl" and session.alarm.alarms:
        session.runtime.set_kl_weight(session.alarm.kl_weight(session.config))


def answer(session: Session, iteration: int) -> Answer:
    """Apply `evaluation.on_alarm` to the recorded evaluation after an iteration.

    A run resumed right after an evaluation responds again: its checkpoint predates the response, so the
    response is the same.

    Raises:
        HackingError: the run must end.
    """
    if iteration == 0:
        return Answer()
    verdict, before = _verdict(session, iteration), session.alarm
    is_hacking = verdict is not None and verdict.is_hacking
    session.alarm = before.after(iteration, is_hacking, _has_collapsed(session, iteration))
    if verdict is None or not is_hacking:
        is_sound = session.alarm.sound == iteration
        if is_sound and session.config.evaluation.on_alarm in ("rollback", "stop"):
            known = session.checkpoints.iterations()
            saved = [number for number in known if session.alarm.unsound < number <= iteration]
            if saved:  # the newest with a sound evaluation; no unsound one came after it
                session.checkpoints.pin(saved[-1])
        return Answer()
    message = f"the score rises while the images get worse, after iteration {iteration}: {verdict.in_words}"
    if not before.sounding:
        _note(session, "hacking", message)
    match session.config.evaluation.on_alarm:
        case "warn":
            return Answer(None if before.sounding else message)
        case "kl":
            weight = session.alarm.kl_weight(session.config)
            session.runtime.set_kl_weight(weight)
            return Answer(
                _note(session, "kl_raised", f"{message}; algorithm.kl_weight is {weight:g} from here on")
            )
        case "stop":
            raise _end(session, message, "evaluation.on_alarm is stop")
        case "rollback":
            if before.returned_to == before.sound:
                raise _end(session, message, f"the run had already returned to iteration {before.sound}")
            pinned = session.checkpoints.pinned
            if pinned is None:
                raise _end(session, message, "there is no sound checkpoint to return to")
            session.runtime.return_to(session.checkpoints.load(pinned).blobs)  # prompts and noise continue
            session.next_plan = None
            message = f"{message}; back to the weights of iteration {pinned}"
            return Answer(_note(session, "returned", message), True)


def _end(session: Session, message: str, why: str) -> HackingError:
    """Return the error that ends a run and leaves the last sound checkpoint as its newest."""
    pinned = session.checkpoints.pinned
    if pinned is None:
        kept = "no evaluation with a checkpoint was sound"
    else:
        session.checkpoints.drop_after(pinned)
        kept = (
            f"its newest checkpoint is the last sound one, of iteration {pinned} (`spotlight export "
            f"{session.run_id}`)"
        )
    weight = session.config.algorithm.kl_weight
    return HackingError(
        f"{message}. The run ends because {why}; {kept}. Start another with algorithm.kl_weight above "
        f"{weight:g}, a lower optimizer.learning_rate or a second part of the reward"
    )


def _verdict(session: Session, iteration: int) -> QualityVerdict | None:
    with session.store.reading(session.run_id) as connection:
        return quality_verdict(paired_figures(connection, session.run_id, iteration))


def _has_collapsed(session: Session, iteration: int) -> bool:
    """Return True if the score is clearly below that of the last sound evaluation."""
    sound = session.alarm.sound
    with session.store.reading(session.run_id) as connection:
        pairs = paired_figures(connection, session.run_id, iteration, sound or None)
    return any(change.high < 0 for change in figure_changes(pairs, [SCORE]))


def _note(session: Session, kind: str, message: str) -> str:
    """Add an event once: a resumed run may reach it again."""
    with session.store.reading(session.run_id) as connection:
        known = connection.execute(
            "SELECT 1 FROM events WHERE run_id = ? AND kind = ? AND message = ?",
            [session.run_id, kind, message],
        ).fetchone()
    if known is None:
        session.store.add_event(session.run_id, kind, message)
    return message
