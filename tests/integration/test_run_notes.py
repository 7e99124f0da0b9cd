"""Tags, notes, archive and links of runs: kept while the run writes."""

from __future__ import annotations

import pytest

from storage.errors import ConfigurationError, RunNotFoundError
from storage.record.run_store import RunNotes, RunStore

pytestmark = pytest.mark.usefixtures("run_r")


def test_what_is_not_given_stays(store: RunStore):
    assert store.notes() == {}
    store.change_notes("r", tags=["paper", " good ", "paper", ""], note=" a word ")
    store.change_notes("r", archived=True)
    assert store.notes() == {"r": RunNotes(("paper", "good"), "a word", True)}
    store.change_notes("r", tags=[], archived=False)
    assert store.notes() == {"r": RunNotes((), "a word", False)}


def test_the_newest_link_to_a_place_counts(store: RunStore):
    store.change_notes("r", tags=["kept"], note="so $1 <b>", archived=True)
    store.link("r", "prefect", "http://127.0.0.1:4200/v2/runs/flow-run/1")
    store.link("r", "prefect", "http://127.0.0.1:4200/v2/runs/flow-run/2")
    assert store.notes() == {"r": RunNotes(("kept",), "so $1 <b>", True)}
    assert store.links("r") == {"prefect": "http://127.0.0.1:4200/v2/runs/flow-run/2"}


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
        store.change_notes("r", **given)
    assert store.notes() == {}


def test_a_run_that_is_not_there_is_refused(store: RunStore):
    with pytest.raises(RunNotFoundError, match="no run 'other'"):
        store.change_notes("other", archived=True)
