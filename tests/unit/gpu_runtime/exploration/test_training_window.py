"""The window that training closes, and the forecast of its length."""

from __future__ import annotations

from gpu_runtime.dispatch.drafts import TrainingWindow
from gpu_runtime.exploration.plan import SeedPlan
from gpu_runtime.exploration.window import DraftGate, WindowForecast
from gpu_runtime.scheduling.requests import WeightsVersion


def window() -> TrainingWindow:
    return TrainingWindow(SeedPlan(1, {}), WeightsVersion(1))


def test_listeners_are_told_of_every_end():
    told: list[str] = []
    there = window()
    there.on_end(lambda: told.append("early"))
    assert told == [] and not there.closed
    there.close(2.5)
    assert (there.closed, there.abandoned) == (True, False)
    there.on_end(lambda: told.append("late"))
    assert told == ["early", "late"]
    there.abandon()
    assert there.abandoned and told == ["early", "late", "early", "late"]


def test_a_window_is_as_long_as_devices_might_draft():
    there = window()
    assert there.open(10.0) == 0
    assert there.open(12.0) == 2  # it was open already
    there.close(15.5)
    assert there.length_s == 5.5


def test_an_abandoned_window_has_no_length():
    there = window()
    there.open(10.0)
    there.abandon()
    assert (there.closed, there.abandoned, there.length_s) == (False, True, None)
    assert (there.drafters, there.lease_s, there.full_drafts) == (0, 0.0, 0.0)


def test_a_device_s_first_drafts_are_tried_and_further_ones_if_they_fit():
    gate = DraftGate(lambda elapsed_s, full_drafts: elapsed_s + full_drafts <= 5)
    asked = [("a", 9.0), ("a", 9.0), ("a", 4.0), ("b", 4.0), ("b", 4.5)]
    assert [gate.may_begin(device, at_s, 1.0) for device, at_s in asked] == [True, False, True, True, False]


def test_what_fits_follows_from_the_longest_window_and_the_usual_draft():
    forecast = WindowForecast()
    assert forecast.fits(1e9, 1e9)  # nothing is known
    assert forecast.budget(2) is None and forecast.budget(0) == 0
    for known in ({"train_s": [4.0], "draft_s": []}, {"train_s": [], "draft_s": [1.0]}):
        forecast.restore(known)
        assert forecast.budget(2) is None and forecast.fits(9.0, 9.0)
    forecast.restore({"train_s": [], "draft_s": []})
    for train_s, device_s in [(4.0, 10.0), (8.0, 20.0), (6.0, 90.0)]:
        forecast.add_window(train_s)
        forecast.add_drafts(device_s, 10)
    forecast.add_drafts(0.0, 10)
    forecast.add_drafts(10.0, 0)
    # The usual draft takes 2 s of a device, the usual window 6 s.
    assert forecast.budget(2) == 6
    assert forecast.fits(0, 4) and forecast.fits(2, 3)
    assert not forecast.fits(0, 4.5) and not forecast.fits(2.5, 3)
