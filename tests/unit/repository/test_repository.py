"""The repository itself: what it must not name, and what its folders say they are for."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Put together here, so that this file does not name them.
REGISTRIES = [
    "".join(parts)
    for parts in (
        ("py", "pi.org"), ("python", "hosted.org"), ("npm", "js.org"), ("npm", "js.com"), ("crates", ".io"),
        ("ana", "conda.org"), ("download.py", "torch.org"), ("hub.", "docker.com"), ("proxy.gol", "ang.org"),
    )
]  # fmt: skip
MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(?:" + "|".join(("wor" + "k", "roo" + "t")) + r")(?![\w.-])")


def repository_files() -> list[Path]:
    """Files that are tracked, or would be by the next commit."""
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        answer = subprocess.run(listing, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [path for name in answer.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_all_documents_together_stay_short():
    """The model cards beside weights, too."""
    documents = [path.stat().st_size for path in repository_files() if path.suffix == ".md"]
    assert sum(documents) <= 220 * 1024, "shorten what a reader does not need"


def test_no_file_names_a_registry_or_a_path_of_one_machine():
    found: list[str] = []
    for path in repository_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # weights and pictures
        for number, line in enumerate(text.splitlines(), start=1):
            if any(host in line for host in REGISTRIES) or MACHINE_PATHS.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert not found, "\n".join(found)


def test_the_pattern_of_machine_paths():
    place = "/" + "work"
    assert all(MACHINE_PATHS.search(text) for text in (place, f"see {place}/main", f'"{place}"'))
    assert not any(MACHINE_PATHS.search(text) for text in (f"{place}er.py", f"tests{place}", f"~{place}"))


def test_no_file_is_a_drawer_for_odds_and_ends():
    drawers = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py"}
    assert [path for path in repository_files() if path.name in drawers] == []


@pytest.mark.parametrize(("room", "loose"), [("gpu_runtime", {"runtime.py"}), ("ui", set())])
def test_no_file_of_a_room_is_loose(room: str, loose: set[str]):
    assert {path.name for path in (ROOT / room).glob("*.py")} == {"__init__.py"} | loose


@pytest.mark.parametrize("room", ["flows", "tasks", "gpu_runtime", "storage", "ui"])
def test_each_folder_has_a_purpose_and_a_border(room: str):
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    borders = {module for contract in contracts["contracts"] for module in modules_of(contract)}
    for folder in sorted(path.parent for path in (ROOT / room).rglob("*/__init__.py")):
        module = ".".join(folder.relative_to(ROOT).parts)
        assert purpose_of(folder)
        assert {module, f"{module.rpartition('.')[0]}.*"} & borders, f"no import contract names {module}"


def modules_of(contract: dict[str, Any]) -> Iterator[str]:
    """The modules that a contract of import-linter names."""
    for container in contract.get("containers", []):
        for layer in contract["layers"]:
            yield from (f"{container}.{name.strip()}" for name in re.split(r"[|:]", layer))
    for key in ("source_modules", "forbidden_modules", "modules"):
        yield from contract.get(key, [])


def test_each_page_of_the_dashboard_is_a_folder_that_says_what_it_is_for():
    pages = ROOT / "ui" / "pages"
    assert {path.name for path in pages.glob("*.py")} == {"__init__.py"}
    script = ROOT / "ui" / "server" / "app.py"
    assert not (script.parent / "pages").exists(), "Streamlit would serve its files before the login"
    listed = script.read_text(encoding="utf-8")
    for folder in folders_of(pages):
        assert purpose_of(folder)
        assert f'"../pages/{folder.name}/page.py"' in listed and f'url_path="{folder.name}"' in listed


def folders_of(room: Path) -> list[Path]:
    return sorted(path.parent for path in room.glob("*/__init__.py"))


def purpose_of(folder: Path) -> str:
    purpose = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    assert purpose, f"{folder.name}/__init__.py does not say what the folder is for"
    return purpose.splitlines()[0].rstrip(".")
