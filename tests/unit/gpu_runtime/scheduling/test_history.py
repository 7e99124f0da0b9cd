"""The promises, from histories made by hand: kept ones, and each of them broken."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gpu_runtime.scheduling.history import HistoryLine, check_history

STEPS = 4


class Story:
    """A history of one phase of samples `a` and `b`, four denoising steps each, told line by line."""

    def __init__(self, life: int = 1) -> None:
        self.life = life
        self.lines: list[HistoryLine] = []
        self._clock = itertools.count(100)
        self.driver("generate", requests=["a", "b"], steps=STEPS)

    def tell(self, by: str, event: str, at: float | None = None, **facts) -> Story:
        moment = float(next(self._clock)) if at is None else at
        self.lines.append(HistoryLine(self.life, by, moment, event, facts))
        return self

    def driver(self, event: str, **facts) -> Story:
        return self.tell("driver", event, **facts)

    def lease(self, number: int, worker: str, step: int = 0, requests: tuple[str, ...] = ("a", "b")) -> Story:
        return self.driver("lease", lease=number, worker=worker, step=step, requests=list(requests))

    def steps(self, number: int, worker: str, begin: int, end: int, interval: int = 2) -> Story:
        for step in range(begin, end):
            if (step - begin) % interval == 0:
                until = min(step + interval, STEPS)
                self.tell(worker, "chunk", lease=number, **{"from": step}, until=until)
            self.tell(worker, "step", lease=number, **{"from": step}, to=step + 1, s=0.1)
        return self

    def deliver(self, number: int, accepted: tuple[str, ...] = ("a", "b"), dropped=()) -> Story:
        return self.driver("deliver", lease=number, accepted=list(accepted), dropped=list(dropped))

    def lose(self, number: int, worker: str) -> Story:
        return self.driver("back", lease=number, why="lost").driver("lost", worker=worker)

    def report(self):
        return check_history(self.lines)


def test_an_undisturbed_phase_keeps_every_promise():
    report = Story().lease(0, "w").steps(0, "w", 0, 4).deliver(0).driver("generated").report()
    assert report.broken() == [] and report.redone == ()
    assert (report.requested, report.steps_needed, report.steps_done, report.steps_redone) == (2, 8, 8, 0)


def killed(reached: int, committed: int, interval: int = 2) -> Story:
    """A worker is killed after `reached` steps; another goes on from `committed`."""
    story = Story().lease(0, "w").steps(0, "w", 0, reached, interval).lose(0, "w")
    story.lease(1, "x", committed).steps(1, "x", committed, STEPS, interval).deliver(1)
    return story.driver("generated")


def test_steps_past_the_commit_are_redone_and_counted_for_each_sample():
    report = killed(reached=3, committed=2).report()
    assert report.broken() == []
    (loss,) = report.redone
    assert (loss.worker, loss.with_notice, loss.most, loss.total, loss.limit) == ("w", False, 1, 2, 2)
    assert report.steps_done == report.steps_needed + report.steps_redone == 10


def test_more_than_the_commit_interval_is_a_broken_promise():
    (said,) = killed(reached=3, committed=0).report().broken()
    assert "loss of w without a notice cost a sample 3" in said and "limit is 2" in said
    assert killed(reached=3, committed=0, interval=3).report().broken() == []


def test_a_commit_that_died_on_the_way_with_its_sender_counts_besides():
    def broken(
        sent: int, committed: int, reached: int = 2, why: str = "lost", resumed: int | None = None
    ) -> int:
        story = Story().lease(0, "w").steps(0, "w", 0, reached, 1)
        if committed:
            story.driver("commit", lease=0, step=committed)
        story.tell("w", "sent", lease=0, step=sent)
        story.driver("back", lease=0, why=why).driver("lost", worker="w")
        begin = committed if resumed is None else resumed
        story.lease(1, "x", begin).steps(1, "x", begin, STEPS, 1).deliver(1)
        return len(story.driver("generated").report().broken())

    assert broken(sent=1, committed=0) == 0, "one on the way, one not sent yet"
    assert broken(sent=2, committed=1) == 0
    assert broken(sent=0, committed=0) == 1, "it was never sent"
    assert broken(sent=3, committed=0, reached=3) == 1, "more than one commit was lost"
    assert broken(sent=1, committed=0, why="expired") == 1, "a hung worker is alive"
    assert broken(sent=1, committed=1, resumed=0) == 1, "it had arrived"


@pytest.mark.parametrize(("seen_before_s", "limit"), [(5.0, 1), (0.1, 2), (-1.0, 2)])
def test_with_a_notice_in_time_only_one_step_may_be_redone(seen_before_s, limit):
    story = killed(reached=2, committed=0)
    (lost,) = [line for line in story.lines if line.event == "lost"]
    story.driver("notice", at=lost.at - seen_before_s, worker="w")
    report = story.report()
    assert report.redone[0].limit == limit and report.redone[0].most == 2
    assert len(report.broken()) == (limit == 1)
    assert [loss.with_notice for loss in report.redone] == [limit == 1]
    assert report.most_redone(with_notice=limit == 1) == 2


@pytest.mark.parametrize("ahead_s", [-300.0, 300.0])
def test_a_worker_s_clock_decides_nothing(ahead_s):
    """Its host's clock may be minutes off: only what the driver wrote is compared."""
    for known in (False, True):
        story = killed(reached=2, committed=0)
        (lost,) = [line for line in story.lines if line.event == "lost"]
        story.tell("w", "notice", at=lost.at - 5.0 + ahead_s, provider="gcp")
        if known:
            story.driver("notice", at=lost.at - 5.0, worker="w")
        (loss,) = story.report().redone
        assert loss.with_notice is known


def test_handing_back_at_a_notice_costs_nothing():
    story = Story().lease(0, "w").steps(0, "w", 0, 1).tell("w", "notice", provider="gcp")
    story.driver("back", lease=0, why="notice").lease(1, "x", 1).steps(1, "x", 1, 4).deliver(1)
    report = story.driver("generated").report()
    assert report.broken() == [] and report.steps_redone == 0


def test_a_sample_accepted_twice_is_a_broken_promise_one_dropped_is_not():
    story = Story().lease(0, "w").steps(0, "w", 0, 4).driver("back", lease=0, why="expired")
    story.lease(1, "x").steps(1, "x", 0, 4).deliver(1)
    late = story.deliver(0, accepted=(), dropped=("a", "b")).driver("generated")
    assert late.report().duplicated == () and late.report().dropped == 2
    twice = late.deliver(0, accepted=("a",)).report()
    assert twice.duplicated == ("a",) and any("accepted twice" in said for said in twice.broken())


def test_a_sample_that_is_lost_or_undone_or_that_two_workers_hold_is_a_broken_promise():
    lost = Story().lease(0, "w").steps(0, "w", 0, 4).deliver(0, accepted=("a",)).driver("generated").report()
    assert lost.lost == ("b",) and "1 samples were lost, such as b" in lost.broken()[0]
    assert killed(reached=1, committed=2).report().incomplete == ("a", "b")
    story = Story().lease(0, "w").lease(1, "x", requests=("b",)).steps(0, "w", 0, 4).deliver(0)
    assert story.driver("generated").report().held_twice == ("b",)
    assert any("two workers at once" in said for said in story.report().broken())


def test_a_phase_that_the_driver_s_death_cuts_off_loses_nothing():
    cut = Story().lease(0, "w").steps(0, "w", 0, 4).deliver(0, accepted=("a",))
    cut.driver("generate", kind="explore", requests=[], steps=STEPS)
    cut.driver("lease", lease=1, kind="explore", worker="x", step=0, requests=["c"])
    cut.steps(1, "x", 0, 4).deliver(1, ("c",))
    again = Story(life=2).lease(0, "w").steps(0, "w", 0, 4).deliver(0).driver("generated")
    report = check_history([*cut.lines, *again.lines])
    assert report.broken() == [] and report.unfinished == 1
    assert (report.requested, report.steps_done, report.steps_redone) == (2, 8, 0)


def test_a_worker_lost_with_nothing_in_hand_is_a_loss_all_the_same():
    story = Story().lease(0, "w").steps(0, "w", 0, 4).deliver(0).driver("generated")
    report = story.driver("lost", worker="w").report()
    assert [loss.with_notice for loss in report.redone] == [False] and report.broken() == []


def test_the_worst_of_several_leases_and_losses_counts():
    story = Story()
    for number, (name, begin) in enumerate((("a", 2), ("b", 1))):
        story.lease(number, "w", requests=(name,)).steps(number, "w", 0, 3)
        story.driver("back", lease=number, why="lost")
        story.lease(2 + number, "x", begin, (name,)).steps(2 + number, "x", begin, 4)
        story.deliver(2 + number, (name,))
    worse = story.driver("lost", worker="w").driver("generated").lines
    [loss] = story.report().redone
    assert (loss.most, loss.total) == (2, 3)
    report = check_history([*worse, *(replace(line, life=2) for line in killed(3, 2).lines)])
    assert [loss.with_notice for loss in report.redone] == [False] * 2 and report.most_redone(False) == 2


def test_of_three_tries_each_step_counts_as_often_as_it_was_repeated():
    story = Story()
    for number, worker in enumerate("uvw"):
        story.lease(number, worker).steps(number, worker, 0, 2)
        if worker != "w":
            story.lose(number, worker)
    report = story.steps(2, "w", 2, 4).deliver(2).driver("generated").report()
    assert {loss.worker: loss.total for loss in report.redone} == {"u": 4, "v": 4}
    assert report.steps_done - report.steps_needed == report.steps_redone == 8


def test_a_lease_that_several_shared_went_back_for_the_one_that_was_lost():
    """Another device of the name of one was lost before, and one is lost after it."""
    story = Story().driver("lost", worker="v").lease(0, "v+w+x").steps(0, "v", 0, 2).steps(0, "w", 0, 3)
    story.driver("back", lease=0, why="lost").driver("lost", worker="w")
    story.lease(1, "v+x", 2).steps(1, "v", 2, 4).deliver(1).driver("lost", worker="x").driver("generated")
    found = [(loss.worker, loss.most, loss.with_notice) for loss in story.report().redone]
    assert found == [("v", 0, False), ("w", 1, False), ("x", 0, False)]


def test_a_notice_to_one_of_several_is_a_notice_for_what_they_share():
    story = Story().lease(0, "v+w").steps(0, "v", 0, 3).tell("w", "notice").driver("notice", worker="w")
    story.driver("back", lease=0, why="notice")
    story.lease(1, "v", 1).steps(1, "v", 1, 4).deliver(1).driver("lost", worker="w").driver("generated")
    report = story.report()
    assert [(loss.worker, loss.most, loss.with_notice) for loss in report.redone] == [("w", 2, True)]
    assert "the loss of w with a notice cost a sample 2" in report.broken()[0]


def test_a_worker_of_another_machine_whose_history_is_not_here_is_named():
    """That nobody seems to have done its steps is no broken promise."""
    where = {"host": "far", "history": "/home/history/r/0001/w.7.jsonl"}
    story = Story().driver("joined", worker="w", **where).lease(0, "w").deliver(0).driver("generated")
    [said] = story.report().broken()
    assert "history of w (life 1) is on far at /home/history/r/0001/w.7.jsonl" in said
    [said] = (
        Story().driver("joined", worker="v").lease(0, "w").deliver(0).driver("generated").report().broken()
    )
    assert "without all their denoising steps" in said
    copied = Story().driver("joined", worker="w", **where).lease(0, "w").steps(0, "w", 0, 4)
    assert copied.deliver(0).driver("generated").report().broken() == []


def beside(rollout_accepted: tuple[str, ...] = ("a", "b"), draft_times: int = 1) -> Story:
    """A draft `c` that begins beside the rollout and ends after it."""
    story = Story()
    story.driver("lease", lease=0, kind="rollout", worker="w", step=0, requests=["a", "b"])
    story.driver("generate", kind="explore", requests=[], steps=0)
    story.driver("lease", lease=1, kind="explore", worker="x", step=0, until=STEPS, requests=["c"])
    story.steps(0, "w", 0, 4).steps(1, "x", 0, 4).deliver(0, rollout_accepted)
    story.driver("generated", kind="rollout")
    for _ in range(draft_times):
        story.deliver(1, ("c",))
    return story.driver("generated", kind="explore")


def test_drafts_beside_a_rollout_are_told_apart_from_it():
    report = beside().report()
    assert report.broken() == []
    assert (report.requested, report.steps_needed, report.steps_done) == (2, 8, 8)
    assert beside(rollout_accepted=("a",)).report().lost == ("b",)
    assert beside(draft_times=2).report().duplicated == ("c",)


def drafted(life: int, draft: str, accepted: bool = True, trained: int = 1) -> list[HistoryLine]:
    """A life in which a draft is made, or not, and trained on so many times."""
    story = Story(life)
    story.lines.clear()
    story.driver("generate", kind="explore", requests=[], steps=STEPS)
    if accepted:
        story.driver("lease", lease=0, kind="explore", worker="w", step=0, requests=[draft])
        story.steps(0, "w", 0, 4).deliver(0, (draft,))
    story.driver("generated", kind="explore").driver("drafted", requests=[draft] * trained)
    return story.lines


def test_a_draft_that_is_trained_on_was_made_and_accepted_once_perhaps_in_the_life_before():
    for lines in (drafted(1, "d"), [*drafted(1, "d"), *drafted(2, "d", accepted=False)]):
        report = check_history(lines)
        assert report.broken() == [] and report.requested == 1
    assert check_history(drafted(1, "d", accepted=False)).lost == ("d",)
    assert check_history(drafted(1, "d", trained=2)).duplicated == ("d",)
