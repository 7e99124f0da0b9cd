"""What `spotlight doctor` says of the devices of a run, on this machine and on a cluster."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from flows.cli import doctor
from flows.cli.command_line import app
from gpu_runtime.models import loading
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, WorkerLostError
from tasks.checks import placement
from tasks.checks.placement import describe_placement
from tests.fake_cluster import FakeCluster

Report = tuple[str, str]


class Host:
    """A process on a host that says one thing."""

    def __init__(self, report: Report | WorkerLostError) -> None:
        self.report = report
        self.asked: tuple[bool, bool] | None = None
        self.killed = False

    def call(self, method: Any, config: RunConfig, trains: bool, arrives: bool) -> Future[Report]:
        self.asked = trains, arrives
        answer: Future[Report] = Future()
        if isinstance(self.report, WorkerLostError):
            answer.set_exception(self.report)
        else:
            answer.set_result(self.report)
        return answer

    def kill(self) -> None:
        self.killed = True


class Hosts(FakeCluster):
    """A cluster of a reserved and a spot host, by what they say."""

    def __init__(self, reserved: Report, spot: Report | WorkerLostError) -> None:
        super().__init__()
        self.tells_markets_apart = True
        self.has |= {"reserved": 4, "spot": 6}
        self.hosts = {"reserved": Host(reserved), "spot": Host(spot)}

    def start(self, name: str, worker: Any, *args: Any, gpu: bool, market: Any = "reserved", **_: Any) -> Any:
        assert gpu, "a host is asked by a process that has a device as a worker would"
        return self.hosts[market]


GOOD = ("one (H100, 80 GiB, torch 2.13.0)", "")


def settings(**runtime: Any) -> RunConfig:
    return RunConfig.model_validate({"runtime": {"cluster": "10.0.0.1:6379"} | runtime})


def on(monkeypatch: pytest.MonkeyPatch, cluster: Hosts, **runtime: Any) -> str:
    monkeypatch.setattr(placement, "open_cluster", lambda config: nullcontext(cluster))
    return describe_placement(settings(**runtime))


def here(**runtime: Any) -> str:
    return describe_placement(RunConfig.model_validate({"runtime": runtime}))


def test_a_machine_without_gpus():
    said = "1 reserved and 2 spot workers on the CPU; reserved-0 trains; 2 scorers, on the CPU"
    assert here(spot_workers=2) == said
    said = here(reserved_workers="auto", spot_workers="auto")
    assert said.startswith("1 reserved and 0 spot workers on the CPU; reserved-0 trains")
    said = here(reserved_workers=2, spot_workers=0, trainer_workers=2)
    assert said.startswith("2 reserved and 0 spot workers on the CPU; reserved-0 to reserved-1 train")


def test_eight_gpus_of_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(placement, "device_of", lambda _: torch.device("cuda"))
    monkeypatch.setattr(loading, "device_of", lambda _: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    every: dict[str, Any] = {"reserved_workers": "auto", "spot_workers": "auto"}
    said = here(**every)
    assert said.startswith("8 reserved and 0 spot workers on 8 GPUs; reserved-0 trains; the other 7 idle")
    said = here(**every, trainer_workers=6, scorer_workers=4, scorer_gpu=0.5)
    assert said.startswith("6 reserved and 0 spot workers on 8 GPUs; reserved-0 to reserved-5 train together")
    assert said.endswith("4 scorers, 0.5 of a GPU each")
    with pytest.raises(ConfigurationError, match=r"9 reserved devices would train .* there are 8;"):
        here(**every, trainer_workers=9)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert here(spot_workers=0, scorer_gpu=0.5).startswith("1 reserved and 0 spot workers on 1 GPUs")
    with pytest.raises(ConfigurationError, match=r"2 reserved devices would train .* there are 1;"):
        here(**every, trainer_workers=2)


def test_hosts_of_a_cluster_are_asked(monkeypatch: pytest.MonkeyPatch):
    cluster = Hosts(GOOD, ("two (H100, 80 GiB, torch 2.13.0)", ""))
    said = on(monkeypatch, cluster, reserved_workers="auto", spot_workers=8, trainer_workers=4)
    assert "4 reserved and 8 spot workers on 10 devices there now, by their label" in said
    assert "2 of 8 spot devices are not there yet; the run waits for them" in said
    assert "a spot host was checked and has everything: two (H100, 80 GiB, torch 2.13.0)" in said
    assert all(host.killed for host in cluster.hosts.values()), "the devices are given back"
    assert {market: host.asked for market, host in cluster.hosts.items()} == {
        "reserved": (True, False), "spot": (False, False)
    }, "a spot worker need not train"  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"5 reserved devices would train .* there are 4;"):
        on(monkeypatch, cluster, reserved_workers="auto", trainer_workers=5)


@pytest.mark.parametrize(
    ("there", "apart", "said"),
    [(2, True, ""), (1, True, "1 of 2 spot devices are not there"), (0, True, "2 of 2 spot"), (0, False, "")],
)
def test_spot_devices_that_come_later_are_said_where_labels_tell(
    monkeypatch: pytest.MonkeyPatch, there: int, apart: bool, said: str
):
    cluster = Hosts(GOOD, GOOD)
    cluster.has |= {"spot": there}
    cluster.tells_markets_apart = apart
    found = on(monkeypatch, cluster, spot_workers=2)
    assert said in found and ("not there yet" in found) == bool(said)
    assert cluster.hosts["spot"].killed == bool(there), "a market without devices has no host to ask"


@pytest.mark.parametrize(
    ("spot", "message"),
    [
        (
            ("two (L4, 24 GiB, torch 2.13.0)", "/models/X is not there"),
            "a spot worker would fail on two .*L4",
        ),
        (WorkerLostError("no module named diffusers"), "no worker starts on a spot host: no module"),
    ],
)
def test_what_a_host_lacks_is_said(monkeypatch: pytest.MonkeyPatch, spot: Any, message: str):
    cluster = Hosts(GOOD, spot)
    with pytest.raises(ConfigurationError, match=message):
        on(monkeypatch, cluster, reserved_workers="auto", spot_workers="auto")
    assert cluster.hosts["spot"].killed


def test_the_command_takes_a_model_and_a_cluster(monkeypatch: pytest.MonkeyPatch):
    asked: list[RunConfig] = []
    monkeypatch.setattr(doctor, "examine", lambda config: asked.append(config) is None)
    given = "doctor --preset qwen-image-ocr-512 --model /models/Q --ray-address h:6379"
    assert CliRunner().invoke(app, given.split()).exit_code == 0
    (config,) = asked
    assert (config.model.path, config.runtime.cluster) == ("/models/Q", "h:6379")
    assert config.runtime.counts_devices
