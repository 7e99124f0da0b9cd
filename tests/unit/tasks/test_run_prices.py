"""A run's prices come from its price book, or the run is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flows.post_train import prices_of
from storage.config.run_config import RunConfig
from storage.home import Home
from storage.record.run_store import RunStore
from tasks.prices import with_prices

BOOK = """device,market,zone,usd_per_hour
H100,on_demand,here,4.0
H100,spot,here,1.5
H100,on_demand,there,2.0
H100,spot,there,
H100,spot,dear,5.0
"""


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "prices.csv"
    path.write_text(BOOK, encoding="utf-8")
    return path


def config(book: object, spot_workers: int = 2, offer: str = "H100@here") -> RunConfig:
    settings = {"book": str(book), "offer": offer}
    return RunConfig.model_validate({"price": settings, "runtime": {"spot_workers": spot_workers}})


def prices(resolved: RunConfig) -> tuple[float, float]:
    return resolved.price.reserved_usd_per_hour, resolved.price.spot_usd_per_hour


def test_both_prices_come_from_the_book_the_rest_stays_and_is_read_again_without_it(book: Path):
    asked = config(book)
    resolved = with_prices(asked)
    assert prices(resolved) == (4.0, 1.5)
    assert resolved.price.book == str(book)
    assert resolved.model_copy(update={"price": asked.price}) == asked
    book.unlink()
    assert RunConfig.model_validate_json(resolved.model_dump_json()) == resolved


def test_the_carried_book_none_and_one_without_a_spot_offer(book: Path):
    asked = config("builtin:known", offer="H100@gcp/us-east4,gcp/us-central1")
    assert prices(with_prices(asked)) == (10.98, 3.35)
    plain = RunConfig()
    assert with_prices(plain) is plain
    assert prices(with_prices(config(book, 0, "H100@there"))) == (2.0, 2.0), "no spot device, no spot offer"


def test_a_run_that_is_there_keeps_the_prices_of_its_beginning(book: Path, tmp_path: Path):
    store = RunStore(Home(tmp_path).ensure())
    resolved = prices_of(store, "run-1", config(book))
    assert prices(resolved) == (4.0, 1.5)
    store.create_run("run-1", resolved, {}, os.getpid())
    book.write_text(BOOK.replace("1.5", "1.25"), encoding="utf-8")
    assert prices(prices_of(store, "run-2", config(book))) == (4.0, 1.25)
    assert prices_of(store, "run-1", store.run("run-1").config) == resolved
