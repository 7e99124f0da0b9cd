"""The environment of every process of ours, and children that import nothing of the current folder."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from storage.processes import (
    ARROW_POOL,
    NO_REPORTS,
    SAFE_PATH,
    environment_for_others,
    python_command,
    set_environment,
    without_collections,
)

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("flows", "tasks", "gpu_runtime", "storage", "ui")


@pytest.mark.parametrize(
    "module", ["spotlight", "flows", "gpu_runtime.scheduling.requests", "storage.errors", "tasks.report"]
)
def test_whatever_is_imported_first_turns_reports_of_use_off(module: str):
    environment = {name: value for name, value in os.environ.items() if name not in NO_REPORTS}
    code = f"import os, {module}; print(*({set(NO_REPORTS)!r} - os.environ.keys()))"
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "\n"


def test_a_person_who_wants_reports_of_use_has_them():
    environ = {"DO_NOT_TRACK": "false"}
    set_environment(environ)
    assert environ == NO_REPORTS | ARROW_POOL | {"DO_NOT_TRACK": "false"}


@pytest.mark.parametrize("given", [{}, {"ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}])
def test_arrow_returns_memory_unless_a_person_chose_its_allocator(given: dict[str, str]):
    environment = {name: value for name, value in os.environ.items() if name not in ARROW_POOL}
    code = "import storage, pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | given, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [answer.stdout.strip()] == list((ARROW_POOL | given).values())


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        ({}, "127.0.0.1,localhost,::1"),
        ({"no_proxy": "a.example, localhost"}, "a.example,localhost,127.0.0.1,::1"),
        ({"NO_PROXY": "a.example"}, "a.example,127.0.0.1,localhost,::1"),
    ],
)
def test_a_proxy_is_not_asked_for_this_machine(given: dict[str, str], hosts: str):
    environ = {"https_proxy": "http://proxy.example:3128"} | given
    for _ in range(2):
        set_environment(environ)
        assert (environ["no_proxy"], environ["NO_PROXY"]) == (hosts, hosts)


def test_no_child_is_started_without_the_safe_path():
    started = re.compile(r"sys\.executable,\s*\*?\"?-[mc]")
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert [str(path) for path in files if started.search(path.read_text(encoding="utf-8"))] == []


def test_a_child_does_not_import_what_lies_in_the_current_folder(tmp_path: Path):
    for name in ("flows", "storage", "random", "queue"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the module of the current folder')")
    answer = subprocess.run(
        python_command("-m", "flows.cli.command_line", "--help"), cwd=tmp_path, capture_output=True, text=True
    )
    assert (answer.returncode, answer.stderr) == (0, "")


def test_a_program_of_the_user_has_the_modules_beside_it(monkeypatch: pytest.MonkeyPatch):
    ((name, value),) = SAFE_PATH.items()
    monkeypatch.setenv(name, value)
    assert name not in environment_for_others()
    monkeypatch.setenv(name, "1")  # the user's own wish
    assert environment_for_others()[name] == "1"


def test_imports_are_without_garbage_collection_and_then_it_is_as_before():
    with pytest.raises(ImportError), without_collections():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    try:
        with without_collections():
            pass
        assert not gc.isenabled(), "the process that imports has switched it off itself"
    finally:
        gc.enable()


@pytest.mark.parametrize(("before", "looks", "frozen"), [("", 0, False), ("gc.freeze(); ", 1, True)])
def test_what_was_imported_is_not_collected_as_young_and_what_is_frozen_stays(
    before: str, looks: int, frozen: bool
):
    code = (
        "import gc; from storage.processes import without_collections\n"
        f"gc.collect(); {before}frozen = gc.get_freeze_count()\n"
        "with without_collections(): made = [[] for _ in range(10_000)]\n"
        "young = {id(one) for number in (0, 1) for one in gc.get_objects(number)}\n"
        "print(int(id(made[-1]) in young), gc.get_freeze_count() == frozen > 0)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == [str(looks), str(frozen)]
