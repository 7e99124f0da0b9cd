"""How many workers `auto` means, which slots they get, and how a fleet grows with its cluster."""

from __future__ import annotations

import pytest

from gpu_runtime.cluster.slots import free_slots, worker_counts
from gpu_runtime.dispatch.devices import Weights
from gpu_runtime.fleet import provisioner
from gpu_runtime.fleet.fleet import Fleet
from gpu_runtime.scheduling.requests import WeightsVersion
from storage.config.loading import list_presets, load_config
from storage.config.run_config import RunConfig
from storage.config.runtime import RuntimeConfig
from storage.errors import ConfigurationError
from tests.fake_cluster import FakeCluster
from tests.tiny_run import tiny_config

FIRST = Weights(WeightsVersion(1), "digest of v1", {})


@pytest.mark.parametrize(
    ("settings", "seen", "apart", "counts"),
    [
        # Numbers stand for themselves, whatever there is.
        ({"reserved_workers": 2, "spot_workers": 5}, (8, 0), True, (2, 5)),
        # By label: four on demand and eight spot.
        ({"reserved_workers": "auto", "spot_workers": "auto"}, (4, 8), True, (4, 8)),
        ({"reserved_workers": "auto", "spot_workers": 8}, (4, 2), True, (4, 8)),
        ({"reserved_workers": 2, "spot_workers": "auto"}, (4, 3), True, (2, 3)),
        # Without a label every GPU is reserved, but for those that a number asks for as spot.
        ({"reserved_workers": "auto", "spot_workers": "auto"}, (8, 0), False, (8, 0)),
        ({"reserved_workers": "auto", "spot_workers": 3}, (8, 0), False, (5, 3)),
        ({"reserved_workers": 2, "spot_workers": "auto"}, (8, 0), False, (2, 6)),
        # The devices that train are needed and waited for.
        ({"reserved_workers": "auto", "spot_workers": "auto", "trainer_workers": 4}, (0, 8), True, (4, 8)),
        ({"reserved_workers": "auto", "spot_workers": 3}, (1, 0), False, (1, 3)),
    ],
)
def test_auto_takes_what_the_cluster_has(settings, seen, apart, counts):
    found = worker_counts(
        RuntimeConfig(**settings), dict(zip(("reserved", "spot"), seen, strict=True)), apart
    )
    assert found == dict(zip(("reserved", "spot"), counts, strict=True))


def test_free_slots_are_the_lowest_numbers_that_are_missing():
    assert free_slots({"reserved": 1, "spot": 3}, ()) == [
        ("reserved", 0), ("spot", 0), ("spot", 1), ("spot", 2),
    ]  # fmt: skip
    assert free_slots({"reserved": 1, "spot": 3}, {"reserved-0", "spot-1"}) == [("spot", 0), ("spot", 2)]
    # Four of six are left: two instances are gone, and what stays keeps its slots.
    left = {"spot-0", "spot-3", "spot-4", "spot-5"}
    assert free_slots({"spot": 4}, left) == []
    assert free_slots({"spot": 5}, left) == [("spot", 1)]


def test_a_fleet_grows_with_its_cluster_and_takes_what_is_left(monkeypatch: pytest.MonkeyPatch):
    cluster = FakeCluster()
    cluster.tells_markets_apart = True
    cluster.has |= {"reserved": 2, "spot": 1}
    fleet = Fleet(cluster, tiny_config(runtime={"reserved_workers": "auto", "spot_workers": "auto"}))
    fleet.await_ready()
    fleet.prepare(FIRST)
    fleet.add_ready_workers()

    def names() -> set[str]:
        return {device.name for device in fleet.workers(FIRST.version)}

    assert names() == {"reserved-0", "reserved-1", "spot-0"}
    cluster.has["spot"] = 3
    monkeypatch.setattr(provisioner, "_COUNT_EVERY_S", 3600.0)
    assert not fleet.regroups(lambda: None, False), "the cluster is not asked at every turn of the loop"  # type: ignore[arg-type]
    monkeypatch.setattr(provisioner, "_COUNT_EVERY_S", 0.0)
    assert fleet.regroups(lambda: None, False), "two more have come within the phase"  # type: ignore[arg-type]
    fleet.add_ready_workers()
    fleet.add_ready_workers()
    assert names() == {"reserved-0", "reserved-1", "spot-0", "spot-1", "spot-2"}
    cluster.has["spot"] = 1
    assert not fleet.regroups(lambda: None, False)  # type: ignore[arg-type]
    started = set(cluster.workers)
    fleet.prepare(FIRST)
    assert set(cluster.workers) == started, "nothing is started for devices that are gone"


def test_presets_of_large_models_count_the_devices_and_those_of_embedded_ones_do_not():
    for preset in list_presets():
        config = load_config(preset.name, [], {})
        assert config.runtime.counts_devices == (config.model.family != "embedded"), preset.name


def test_auto_is_read_from_any_source_and_kept_as_it_was_given():
    config = load_config(
        "smoke", ["runtime.spot_workers=auto"], {"SPOTLIGHT_RUNTIME__RESERVED_WORKERS": "auto"}
    )
    assert config.runtime.counts_devices
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert config.runtime.devices_in_words == "all reserved and all spot devices of the cluster"
    with pytest.raises(
        ConfigurationError,
        match=r"runtime.spot_workers = -1 \(from --set\): give a whole number from 0 to 1,024",
    ):
        load_config("smoke", ["runtime.spot_workers=-1"], {})
