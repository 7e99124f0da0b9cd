from __future__ import annotations

import pytest

from gpu_runtime.fleet.seeding_window import LiveWindow, SeedingWindows, most_useful_spot, solved_window_s
from storage.errors import ConfigurationError


@pytest.mark.parametrize(
    ("work_s", "train_s", "reserved", "spot", "window_s"),
    [(100.0, 10.0, 2, 3, 14.0), (100.0, 10.0, 2, 0, 50.0), (20.0, 10.0, 2, 3, 0.0), (0.0, 0.0, 1, 0, 0.0)],
)
def test_after_the_solved_window_the_spot_devices_need_as_long_as_training(
    work_s: float, train_s: float, reserved: int, spot: int, window_s: float
):
    assert solved_window_s(work_s, train_s, reserved, spot) == pytest.approx(window_s)


def test_a_window_follows_the_waits_and_does_not_shrink_below_the_floor():
    windows = SeedingWindows(30.0)
    windows.add_waits(3, trainers_s=6.0, spot_s=0.0)
    assert windows.window_s(3) == pytest.approx(32.0)
    windows.add_waits(3, trainers_s=0.0, spot_s=300.0)
    assert windows.window_s(3) == 5.0
    short = SeedingWindows(3.0)
    short.add_waits(1, trainers_s=0.0, spot_s=30.0)
    assert short.window_s(1) == 3.0


@pytest.mark.parametrize(("remembers", "window_s"), [(True, 32.0), (False, 42.0)])
def test_a_number_of_spot_devices_that_returns_has_its_own_window(remembers: bool, window_s: float):
    windows = SeedingWindows(30.0, remembers)
    windows.add_waits(3, trainers_s=6.0, spot_s=0.0)
    windows.add_waits(4, trainers_s=30.0, spot_s=0.0)
    assert windows.window_s(4) == pytest.approx(42.0)
    assert windows.window_s(3) == pytest.approx(window_s)


def test_more_spot_devices_than_the_training_has_work_for_wait():
    # A window of 14 s, then 10 s of training: three spot devices have 24 s each, two trainers 14: 100 in all.
    assert most_useful_spot(24.0, 3, 14.0, 2, 10.0) == pytest.approx(10.0)
    # With that many, no window is needed.
    assert solved_window_s(100.0, 10.0, 2, 10) == 0.0
    with pytest.raises(ConfigurationError, match="train_s"):
        most_useful_spot(24.0, 3, 14.0, 2, 0.0)


def test_impossible_windows_are_refused():
    with pytest.raises(ConfigurationError, match="at least one reserved or spot device"):
        solved_window_s(1.0, 1.0, 0, 0)
    with pytest.raises(ConfigurationError, match="train_s"):
        solved_window_s(1.0, -1.0, 1, 1)
    with pytest.raises(ConfigurationError, match="first window"):
        SeedingWindows(float("nan"))


def test_trainers_go_on_while_a_batch_of_theirs_lets_both_end_sooner():
    window = LiveWindow()
    assert window.goes_on(0.5, 3, 10.0), "no batch has been timed"
    window.on_rolled_out([1.0, 2.0, 9.0])
    assert window.goes_on(0.5, 3, None), "no training has been timed"
    assert window.goes_on(0.5, 0, 10.0), "no other device can"
    # Three devices need 12 s for 18 batches of 2 s: as long as a batch and then 10 s of training.
    assert window.goes_on(18.5, 3, 10.0) and not window.goes_on(18.0, 3, 10.0)
    window.on_rolled_out([])
    assert window.goes_on(18.0, 2, 10.0), "one of them was lost"
    assert window.goes_on(18.0, 3, 9.5), "a part is trained on"


def test_why_trainers_left_is_said_once_for_a_number_of_others():
    window = LiveWindow()
    window.on_rolled_out([2.0])
    for others in (3, 3, 2, 3):
        window.goes_on(6.0, others, 10.0)
    notes = window.take_notes()
    assert [note.split("beside ")[1].split(" ")[0] for note in notes] == ["3", "2", "3"]
    assert "need 4.0 s for the rest" in notes[0] and "training takes 10.0 s" in notes[0]
    assert window.take_notes() == []
