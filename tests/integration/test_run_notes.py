"""Tags, notes, archive and links of runs: kept while the run writes."""

from __future__ import annotations

import pytest

from storage.errors import ConfigurationError, RunNotFoundError
from storage.record.run_notes import NoteStore, RunNotes
from storage.record.run_store import RunStore

pytestmark = pytest.mark.usefixtures("run_r")


def test_what_is_not_given_stays(store: RunStore):
    notes = NoteStore(store.home)
    assert notes.notes() == {}
    notes.change("r", tags=["paper", " good ", "paper", ""], note=" a word ")
    notes.change("r", archived=True)
    assert notes.notes() == {"r": RunNotes(("paper", "good"), "a word", True)}
    notes.change("r", tags=[], archived=False)
    assert notes.notes() == {"r": RunNotes((), "a word", False)}


def test_the_newest_link_to_a_place_counts(store: RunStore):
    notes = NoteStore(store.home)
    notes.change("r", tags=["kept"], note="so $1 <b>", archived=True)
    notes.link("r", "prefect", "http://127.0.0.1:4200/v2/runs/flow-run/1")
    notes.link("r", "prefect", "http://127.0.0.1:4200/v2/runs/flow-run/2")
    assert notes.notes() == {"r": RunNotes(("kept",), "so $1 <b>", True)}
    assert notes.links("r") == {"prefect": "http://127.0.0.1:4200/v2/runs/flow-run/2"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tags": ["x" * 41]}, "41 characters, at most 40"),
        ({"tags": [str(number) for number in range(21)]}, "at most 20"),
        ({"note": "x" * 2001}, "at most 2,000"),
    ],
)
def test_what_is_too_long_is_refused(store: RunStore, given: dict, said: str):
    with pytest.raises(ConfigurationError, match=said):
        NoteStore(store.home).change("r", **given)
    assert NoteStore(store.home).notes() == {}


def test_a_run_that_is_not_there_is_refused(store: RunStore):
    with pytest.raises(RunNotFoundError, match="no run 'other'"):
        NoteStore(store.home).change("other", archived=True)
