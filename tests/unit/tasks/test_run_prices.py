"""A run's prices come from its price book, or the run is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import post_train
from flows.deployed.forms import ReproductionForm
from flows.reproduction_inputs import config_again
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.record.run_store import RunStore
from tasks.prices import with_prices

BOOK = """device,market,zone,usd_per_hour
H100,on_demand,here,4.0
H100,spot,here,1.5
H100,on_demand,there,2.0
H100,spot,there,
H100,spot,dear,5.0
H100,spot,equal,4.0
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
    assert prices(with_prices(config(book, offer="H100@here,equal"))) == (4.0, 4.0)
    book.unlink()
    assert RunConfig.model_validate_json(resolved.model_dump_json()) == resolved


def test_the_carried_book_none_and_one_without_a_spot_offer(book: Path):
    asked = config("builtin:known", offer="H100@gcp/us-east4,gcp/us-central1")
    assert prices(with_prices(asked)) == (10.98, 3.35)
    plain = RunConfig()
    assert with_prices(plain) is plain
    assert prices(with_prices(config(book, 0, "H100@there"))) == (2.0, 2.0), "no spot device, no spot offer"


def test_a_run_done_again_keeps_the_recorded_prices_though_the_book_has_changed_or_is_gone(
    book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def enter(store: RunStore, run_id: str, config: RunConfig, *_: object) -> None:
        entered.append(config)
        raise ConfigurationError("refused")

    def entered_with(*settings: str) -> tuple[float, float]:
        again = config_again(ReproductionForm(reference="r", settings=list(settings)), was)
        with pytest.raises(ConfigurationError, match="refused"):
            post_train.train_run(again, "again")
        return prices(entered.pop())

    entered: list[RunConfig] = []
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(post_train, "enter_run", enter)
    was: Any = SimpleNamespace(run_config=with_prices(config(book)))
    book.write_text(BOOK.replace("1.5", "1.25"), encoding="utf-8")
    assert entered_with() == entered_with("seed=3") == (4.0, 1.5)
    assert entered_with("price.offer=H100@there,here") == (2.0, 1.25)
    book.unlink()
    assert entered_with() == (4.0, 1.5)
