"""What a run on one machine starts listens on this machine alone.

Of a whole run with a local Ray it is in `test_deployments.py`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from gpu_runtime.cluster.ray.local_instances import LocalInstances, _free_ports
from gpu_runtime.cluster.ray.ray_cluster import RayCluster
from gpu_runtime.cluster.ray.ray_internals import (
    found_address,
    is_on_loopback_alone,
    on_loopback_alone,
    ray,
    ray_constants,
    services,
)
from gpu_runtime.sequence_parallel.control_store import ControlStore
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.home import Home
from tests.listening import beyond_this_machine, kinds_of_ray, listening
from tests.local_ray_instances import local_ray_instances
from tests.running_up import running_up
from tests.sample_login import LOGIN, write_login


class Listener:
    def where(self) -> int:
        return os.getpid()


@pytest.fixture(params=["0.0.0.0", "::"])
def open_to_all(request: pytest.FixtureRequest) -> Iterator[int]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        server = socket.create_server((request.param, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {request.param}")
    with server:
        yield server.getsockname()[1]


def own_addresses() -> dict[str, set[str]]:
    """The addresses that this process and its children listen on, children of earlier tests included."""
    me = psutil.Process()
    return listening([me, *me.children(recursive=True)])


def test_who_listens_to_all_is_seen(open_to_all: int):
    heard = beyond_this_machine(listening([psutil.Process()]))
    assert str(open_to_all) in {place.rpartition(":")[2] for place in heard}


def test_a_store_where_groups_meet_listens_on_its_address_alone():
    before = listening([psutil.Process()])
    store = ControlStore()
    heard = listening([psutil.Process()])
    assert heard.keys() - before.keys() == {f"127.0.0.1:{store.address.port}"}
    member = store.address.connect(timeout_s=60)
    store.abort("epoch-1/group-0/")
    assert member.check(["epoch-1/group-0/aborted"])


def test_no_connection_can_take_a_port_that_an_agent_will_listen_on():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(50):
        ports = set(_free_ports().values())
        assert len(ports) == 4 and max(ports) < lowest


def test_a_cluster_is_looked_for_on_this_machine_alone_only_if_it_is_there_alone():
    others_reach_it = ray.util.get_node_ip_address() != "127.0.0.1"
    with socket.create_server(("127.0.0.1", 0)) as alone, socket.create_server(("0.0.0.0", 0)) as open_to_all:
        port = alone.getsockname()[1]
        assert is_on_loopback_alone(f"127.0.0.1:{port}") == others_reach_it
        assert is_on_loopback_alone(f"localhost:{port}") == others_reach_it
        assert not is_on_loopback_alone(f"127.0.0.1:{open_to_all.getsockname()[1]}")
    for left_to_ray in (f"ray://127.0.0.1:{port}", f"10.1.2.3:{port}"):
        assert not is_on_loopback_alone(left_to_ray)


def test_auto_is_the_address_of_the_cluster_that_runs_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(services, "find_bootstrap_address", lambda temp_dir: None)
    monkeypatch.setattr(services, "_find_address_from_flag", lambda flag: {"127.0.0.1:6399"})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert found_address("auto") == "127.0.0.1:6399"
    monkeypatch.setattr(services, "_find_address_from_flag", lambda flag: set())
    with pytest.raises(ConnectionError):
        found_address("auto")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6398")
    assert found_address("auto") == "127.0.0.1:6398"
    assert found_address("10.1.2.3:6379") == "10.1.2.3:6379", "an address that is given is the one joined"


@pytest.fixture(scope="module")
def before() -> dict[str, set[str]]:
    return own_addresses()


@pytest.fixture(scope="module")
def instances(before: dict[str, set[str]]) -> Iterator[LocalInstances]:
    """A reserved instance for one process."""
    with local_ray_instances(reserved_cpus=1) as started:
        yield started


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_auto_gets_workers_of_a_cluster_on_the_loopback_alone(
    instances: LocalInstances, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_ADDRESS", instances.address)  # other clusters of this machine are not meant
    cluster = RayCluster(RunConfig.model_validate({"runtime": {"cluster": "auto"}}))
    try:
        started = cluster.start("reserved", Listener, gpu=False)
        assert started.call(Listener.where).result(timeout=600) > 0
    finally:
        cluster.shutdown()
    far_too_many = {"cluster": "auto", "reserved_workers": 9, "spot_workers": 0}
    with pytest.raises(ConfigurationError, match="the cluster has 1 CPUs"):
        RayCluster(RunConfig.model_validate({"runtime": far_too_many}))
    eight = RayCluster(RunConfig.model_validate({"runtime": far_too_many | {"reserved_workers": 8}}))
    eight.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_local_instances_are_reached_from_this_machine_alone(
    before: dict[str, set[str]], instances: LocalInstances
):
    instances.add("one")
    assert instances.address.startswith("127.0.0.1:")
    cluster = RayCluster(RunConfig.model_validate({"runtime": {"cluster": instances.address}}))
    try:
        markets = ("reserved", "spot")
        started = [cluster.start(market, Listener, gpu=False, market=market) for market in markets]
        assert len({actor.call(Listener.where).result(timeout=600) for actor in started}) == 2
        heard = {place: who for place, who in own_addresses().items() if place not in before}
        assert cluster.host == "127.0.0.1"
    finally:
        cluster.shutdown()
    assert kinds_of_ray(heard) >= {"gcs_server", "raylet", "ray::"}
    assert beyond_this_machine(heard) == {}


def test_a_start_or_a_failed_one_leaves_ray_as_it_was():
    assert ray_constants.ENABLE_RAY_CLUSTER, "clusters that are joined later are looked for elsewhere too"
    with on_loopback_alone():
        pass
    assert ray_constants.ENABLE_RAY_CLUSTER
    with pytest.raises(ZeroDivisionError), on_loopback_alone():
        assert ray.util.get_node_ip_address() == "127.0.0.1"
        raise ZeroDivisionError
    assert ray_constants.ENABLE_RAY_CLUSTER


@pytest.mark.slow
def test_up_lets_other_machines_in_where_asked(tmp_path: Path):
    others = ray.util.get_node_ip_address()
    write_login(Home(tmp_path), LOGIN | {"redirect_uri": f"https://{others}/oauth2callback"})
    with running_up(Home(tmp_path).ensure(), "--host", "0.0.0.0") as up:
        assert up.said("warning: --host 0.0.0.0: other machines reach the dashboard")
        heard = beyond_this_machine(listening(up.processes()))
        assert {place.rpartition(":")[0] for place in heard} == {"0.0.0.0"}
        api, dashboard = (url.replace("127.0.0.1", others) for url in (up.api, up.dashboard))
        assert up.client.get(f"{api}/admin/version").status_code == httpx.codes.OK
        assert httpx.get(f"{api}/admin/version", timeout=60).status_code == httpx.codes.UNAUTHORIZED
        assert httpx.get(f"{dashboard}/_stcore/health", timeout=60).text == "ok"
        # A browser elsewhere asks for the API where it has got the page from.
        settings = httpx.get(f"{api.removesuffix('/api')}/ui-settings", timeout=60).json()
        assert settings["api_url"] == "/api"
        assert {f"0.0.0.0:{url.split(':')[2].partition('/')[0]}" for url in (api, dashboard)} == set(heard)
