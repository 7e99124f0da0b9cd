import pytest

from gpu_runtime.scheduling.weights_table import Departure, Transfer, WeightsTable
from storage.errors import SchedulingError


def table(**instances: str) -> WeightsTable:
    made = WeightsTable()
    for worker, instance in instances.items():
        made.join(worker, instance)
    return made


def test_a_version_spreads_and_receivers_become_sources():
    weights = table(trainer="r", a="s1", b="s1")
    weights.put("trainer", 1)
    assert weights.nearest(1, "s1") == "trainer"
    weights.begin("a", 1, "trainer")
    assert weights.receiving("a") == Transfer("trainer", 1)
    assert weights.holders(1) == ("trainer",)  # half a copy is none
    assert weights.nearest(1, "s1") == "trainer"
    assert weights.finish("a") == 1
    assert weights.holders(1) == ("a", "trainer")
    assert weights.receiving("a") is None
    assert weights.nearest(1, "s1") == "a"


def test_the_nearest_is_on_the_same_instance_then_the_least_busy_then_the_first_by_name():
    weights = table(c="s1", b="s2", a="s2", d="s3", e="s3", f="s4")
    for worker in "cbad":
        weights.put(worker, 1)
    assert weights.nearest(1, "s1") == "c"
    assert weights.nearest(1, "s4") == "a"
    weights.begin("f", 1, "a")
    assert weights.nearest(1, "s4") == "b"
    weights.begin("e", 1, "b")
    assert weights.nearest(1, "s4") == "c"
    # However busy, the same instance is nearer.
    assert weights.nearest(1, "s3") == "d"
    assert weights.nearest(1, "s2") == "a"
    assert (weights.reading_from("a"), weights.reading_from("nobody")) == (1, 0)
    assert weights.nearest(2, "s1") is None


def test_a_transfer_that_fails_leaves_both_as_they_were():
    weights = table(a="s1", b="s2")
    weights.put("a", 1)
    weights.begin("b", 1, "a")
    assert weights.fail("b") == Transfer("a", 1)
    assert weights.holders(1) == ("a",)
    assert (weights.reading_from("a"), weights.receiving("b")) == (0, None)
    weights.begin("b", 1, "a")
    assert weights.finish("b") == 1


def test_the_end_of_a_source_interrupts_its_readers():
    weights = table(a="s1", b="s2", c="s2", d="s2")
    weights.put("a", 1)
    weights.put("a", 2)
    weights.put("a", 3)  # nobody needs it
    weights.put("d", 1)
    weights.pin(1, "explore")
    weights.pin(2, "rollout")
    weights.begin("c", 1, "a")
    weights.begin("b", 2, "a")
    assert weights.gone("a") == Departure(interrupted=("b", "c"), lost=(2,))
    assert (weights.receiving("b"), weights.receiving("c")) == (None, None)
    assert weights.holders(2) == () and weights.holders(1) == ("d",)
    assert weights.gone("a") == Departure((), ())
    assert weights.versions("a") == ()


def test_the_end_of_a_receiver_frees_its_source():
    weights = table(a="s1", b="s2")
    weights.put("a", 1)
    weights.begin("b", 1, "a")
    assert weights.gone("b") == Departure((), ())
    assert weights.reading_from("a") == 0
    weights.join("b", "s3")  # its name may come again
    assert weights.versions("b") == ()


def test_the_last_copy_of_a_needed_version_is_never_dropped():
    weights = table(a="s1", b="s2")
    for worker in "ab":
        weights.put(worker, 1)
    weights.pin(1, "rollout")
    weights.pin(1, "explore")
    assert weights.may_drop(1, "a") and weights.may_drop(1, "b")
    weights.drop("a", 1)
    assert not weights.may_drop(1, "b")
    with pytest.raises(SchedulingError, match="'b' may not drop version 1"):
        weights.drop("b", 1)
    weights.unpin(1, "rollout")
    assert weights.needed() == (1,)
    assert not weights.may_drop(1, "b")
    weights.unpin(1, "explore")
    weights.unpin(1, "explore")
    assert weights.needed() == ()
    weights.drop("b", 1)
    assert weights.holders(1) == () and weights.versions("b") == ()


def test_a_copy_that_is_being_read_is_not_dropped():
    weights = table(a="s1", b="s2", c="s3")
    weights.put("a", 1)
    weights.put("a", 2)
    weights.put("b", 1)
    weights.begin("c", 1, "a")
    assert not weights.may_drop(1, "a")
    assert weights.may_drop(2, "a")  # the other version is not
    weights.fail("c")
    assert weights.may_drop(1, "a")


def test_nobody_drops_what_it_does_not_hold():
    weights = table(a="s1")
    assert not weights.may_drop(1, "a")
    assert not weights.may_drop(1, "nobody")
    with pytest.raises(SchedulingError, match="may not drop"):
        weights.drop("a", 1)


def test_a_worker_holds_the_old_version_while_the_new_one_comes():
    weights = table(a="s1", b="s2")
    weights.put("a", 2)
    weights.put("b", 1)
    weights.begin("b", 2, "a")
    assert weights.versions("b") == (1,)
    weights.finish("b")
    assert weights.versions("b") == (1, 2)


def test_what_cannot_be_is_refused():
    weights = table(a="s1", b="s2", c="s3")
    with pytest.raises(SchedulingError, match="'a' is in the table"):
        weights.join("a", "s1")
    with pytest.raises(SchedulingError, match="'nobody' is not in the table"):
        weights.put("nobody", 1)
    with pytest.raises(SchedulingError, match="'a' holds no copy of version 1"):
        weights.begin("b", 1, "a")
    weights.put("a", 1)
    weights.put("a", 2)
    with pytest.raises(SchedulingError, match="'a' holds version 1 already"):
        weights.begin("a", 1, "a")
    weights.begin("b", 1, "a")
    with pytest.raises(SchedulingError, match="'b' is receiving version 1"):
        weights.begin("b", 2, "a")
    with pytest.raises(SchedulingError, match="no transfer to 'c'"):
        weights.finish("c")
    with pytest.raises(SchedulingError, match="no transfer to 'c'"):
        weights.fail("c")
