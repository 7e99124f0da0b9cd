"""Which dollars are called modelled, and when a saving is claimed."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import environment
from storage.ledger.ledger import Entry, Ledger, Spent
from storage.ledger.modelled import is_modelled
from ui.charts.cost import no_saving, on_demand_cost


@pytest.mark.parametrize(
    ("settings", "environment", "modelled"),
    [
        ({"runtime": {"cluster": "ray"}}, {"accelerators": "none"}, True),
        ({"runtime": {"cluster": "local"}}, {}, True),
        ({"gone": 1}, {}, True),
        ({"runtime": {"cluster": "ray"}}, {"accelerators": "1 x NVIDIA H100"}, False),
        ({"runtime": {"cluster": "10.0.0.1:6379"}}, {"accelerators": "none"}, False),
        ({"runtime": {"cluster": "auto"}}, {"accelerators": "none"}, True),
        ({"runtime": {"cluster": "127.0.0.1:6379"}}, {"accelerators": "none"}, True),
        ({"runtime": {"cluster": "ray://localhost:10001"}}, {"accelerators": "none"}, True),
        ({"runtime": {"cluster": "auto"}}, {"accelerators": "8 x AMD gfx90402"}, False),
        ({"runtime": {"cluster": "10.0.0.1:6379"}, "model": {"device": "cpu"}}, {}, True),
        ({"runtime": {"cluster": "10.0.0.1:6379"}}, {"devices": "cpu"}, True),
        ({"runtime": {"cluster": "ray"}}, {"accelerators": "1 x NVIDIA H100", "devices": "cpu"}, True),
        ({"runtime": {"cluster": "ray"}}, {"accelerators": "none", "devices": "NVIDIA H100, cpu"}, False),
    ],
)
def test_dollars_are_modelled_where_no_device_was_rented(settings: dict, environment: dict, modelled: bool):
    assert is_modelled(settings, environment) is modelled


def ledger(worked_s: float, idle_s: float, spot_usd_per_s: float = 0.001) -> Ledger:
    entries = (
        Entry("iteration", "reserved", "train", Spent(100.0, 0.3)),
        Entry("iteration", "spot", "rollout", Spent(worked_s, worked_s * spot_usd_per_s)),
        Entry("iteration", "spot", "idle", Spent(idle_s, idle_s * spot_usd_per_s)),
    )
    return Ledger(entries, (), (), (), True, 0, 0)


def why_not(of: Ledger, modelled: bool) -> str:
    compared = on_demand_cost(of)
    assert compared is not None
    return no_saving(of, compared, modelled)


def test_a_saving_is_what_reserved_devices_would_have_cost_more():
    compared = on_demand_cost(ledger(60, 40))
    assert compared is not None
    assert compared.saved_usd == pytest.approx(100 * (0.003 - 0.001))
    assert why_not(ledger(60, 40), modelled=False) == ""


def test_spot_devices_that_idle_more_than_they_work_save_nothing():
    found = why_not(ledger(40, 60), modelled=False)
    assert found == "Spot devices idled 60.0 s and worked 40.0 s."


def test_modelled_dollars_save_nothing():
    assert "No device was rented" in why_not(ledger(60, 40), modelled=True)


def test_spot_devices_at_the_reserved_price_save_nothing():
    assert "as much as reserved" in why_not(ledger(60, 40, 0.003), modelled=False)


def test_gpus_of_amd_are_accelerators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for node, simds in enumerate((0, 304, 304)):
        folder = tmp_path / str(node)
        folder.mkdir()
        (folder / "properties").write_text(f"simd_count {simds}\ngfx_target_version 90402\n")
    monkeypatch.setattr(environment, "_AMD_NODES", tmp_path)
    assert "2 x AMD gfx90402" in environment.environment()["accelerators"]
