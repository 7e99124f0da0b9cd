"""Every module of the rooms is part of what a person can start."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.module_graph import modules, reachable

ROOT = Path(__file__).resolve().parents[3]


def entry_points() -> set[str]:
    """Modules with which a person starts a process; those that the product starts are named in its source."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    found = {target.partition(":")[0] for target in scripts.values()}
    deployed = re.findall(r"^\s*entrypoint: (\S+)\.py:", (ROOT / "prefect.yaml").read_text(), re.M)
    assert deployed
    return found | {path.replace("/", ".") for path in deployed}


def test_every_module_can_be_reached_by_a_command():
    files = modules(ROOT)
    starts = entry_points()
    assert starts <= files.keys()
    unreachable = sorted(files.keys() - reachable(starts, files))
    assert not unreachable, (
        f"no command, deployment or page reaches {', '.join(unreachable)}: give users a way to it, move "
        "it to benchmarks/ or tests/, or delete it"
    )


@pytest.fixture
def house(tmp_path: Path):
    """A house of two rooms, made of the files that a test gives it; module -> what it reaches."""

    def build(**sources: str) -> set[str]:
        for name, source in sources.items():
            path = tmp_path / ((name if "/" in name else name.replace("__", "/")) + ".py")
            path.parent.mkdir(exist_ok=True, parents=True)
            for folder in list(path.relative_to(tmp_path).parents)[:-1]:
                (tmp_path / folder / "__init__.py").touch()
            path.write_text(source)
        return reachable(["flows.start"], modules(tmp_path))

    return build


@pytest.mark.parametrize(
    ("source", "reached"),
    [
        ("import tasks.work", True),
        ("from tasks.work import Work", True),
        ("from tasks import work", True),
        ("def late():\n    from tasks.work import Work", True),
        ("import importlib\nimportlib.import_module('tasks.work')", True),
        ("run([python, '-m', 'tasks.work'])", True),
        ("serve(root / 'tasks/work.py')", True),
        ("'''See tasks.work.'''", False),
        ("import tasks", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tasks.work import Work", False),
        ("if typing.TYPE_CHECKING:\n    pass\nelse:\n    import tasks.work", True),
    ],
)
def test_what_counts_as_a_way_to_a_module(house, source: str, reached: bool):
    found = house(flows__start=source, tasks__work="")
    assert ("tasks.work" in found) == reached


def test_a_module_is_reached_over_others_and_a_page_by_its_file(house):
    found = house(
        flows__start="import tasks.page", tasks__page="Page('other.py')", tasks__other="", tasks__alone=""
    )
    assert found == {"flows", "flows.start", "tasks", "tasks.page", "tasks.other"}


def test_a_page_in_another_folder_and_a_package_that_is_run_are_reached(house):
    found = house(
        **{
            "flows/start": "Page('../tasks/page.py')", "tasks/page": "run('-m', 'ui.report')",
            "ui/report/__main__": "", "ui/report/other": "",
        }
    )  # fmt: skip
    assert {"tasks.page", "ui.report.__main__"} <= found
    assert "ui.report.other" not in found
