"""The page Reproducibility: nothing yet, good reproductions, and a drift in red."""

from __future__ import annotations

import dataclasses

from storage.evaluations.reproductions import Reproduction, write_reproduction
from storage.record.run_store import RunStore
from tests.dashboard_page import opened_page


def done(name: str, started_at: float, **changes: object) -> Reproduction:
    whole = Reproduction(
        name, "glyphs", "train", "glyphs-1", f"run-{name}", started_at, started_at + 200, "identical",
        "all the same", 0.8, 0.8, 0.0, 0.0, 0.0,
    )  # fmt: skip
    return dataclasses.replace(whole, **changes)


def test_nothing_yet_says_what_to_do(store: RunStore):
    page = opened_page("reproducibility")
    assert [box.value for box in page.info] == ["No reproductions yet."]
    assert "spotlight reproduce RUN" in page.code[0].value


def test_the_newest_of_each_series_is_on_top_and_a_drift_is_red(store: RunStore):
    seed = {"kind": "configuration", "what": "seed", "was": "0", "is": "1"}
    for row in (
        done("a", 1e9, verdict="recorded", message="the first"),
        done("b", 1e9 + 86400),
        done("c", 1e9 + 2 * 86400, verdict="drifted", message="seed was 0, is 1", differences=[seed]),
        done("d", 1e9, series="shapes"),
    ):
        write_reproduction(store.home, row)
    page = opened_page("reproducibility")
    (red,) = page.error
    assert red.value.startswith("**glyphs**")
    assert red.value.endswith("drifted. seed was 0, is 1")
    (green,) = page.success
    assert "**shapes**" in green.value
    history, differences = (frame.value for frame in page.dataframe)
    assert list(history["verdict"]) == [
        "drifted", "bit-identical", "reference recorded", "bit-identical",
    ]  # fmt: skip
    assert differences.to_dict("records") == [seed]
    assert page.dataframe[0].proto.columns.count('"%.4f"') == 5, "scores, difference and interval"


def test_markup_in_a_name_is_shown_and_not_run(store: RunStore):
    name = "<script>alert(1)</script> ![x](http://127.0.0.1/x.png)"
    write_reproduction(store.home, done("x", 1e9, series=name, verdict="failed", message="a $ b $ c"))
    page = opened_page("reproducibility")
    (red,) = page.error
    assert r"\<script\>alert(1)\</script\> \!\[x\](http" in red.value
    assert red.value.endswith(r"a \$ b \$ c")
