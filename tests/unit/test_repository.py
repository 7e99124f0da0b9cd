"""The repository itself: what it must not name, and what the README promises of it."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = sorted(
    path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")
)

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
def test_each_folder_of_a_room_says_what_it_is_for_and_no_other_file_is_loose(room: str, loose: set[str]):
    assert {path.name for path in (ROOT / room).glob("*.py")} == {"__init__.py"} | loose
    shown = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for folder in folders_of(ROOT / room):
        assert f"| `{folder.name}/` | {purpose_of(folder)} |" in shown


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


def test_the_readmes_links_lead_somewhere():
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = document.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_pictures_of_documents_are_small_and_shown_somewhere():
    pictures = list((ROOT / "docs" / "images").iterdir())
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    assert [path.name for path in pictures if not any(f"images/{path.name})" in text for text in texts)] == []
    assert [path.name for path in pictures if path.stat().st_size > 250_000] == []
    assert sum(path.stat().st_size for path in pictures) < 1_500_000


@pytest.mark.parametrize(
    "document",
    [
        "flow-grpo",
        "models",
        "forward-process",
        "exploration",
        "determinism",
        "storage",
        "dashboard",
        "spot",
        "rewards",
        "evaluation",
        "training-on-several-gpus",
        "sequence-parallel",
        "operating",
    ],
)
def test_the_places_that_documents_name_exist(document: str):
    """`file.py::name` in a document: the file has that name in it."""
    text = (ROOT / "docs" / f"{document}.md").read_text(encoding="utf-8")
    places = re.findall(r"`([\w/]+\.py)::(\w+)(?:\.(\w+))?`", text)
    assert places
    for file, name, method in places:
        source = (ROOT / file).read_text(encoding="utf-8")
        for wanted in filter(None, (name, method)):
            assert re.search(rf"\b(def|class) {wanted}\b|^{wanted}\b", source, re.M), (
                f"{file} has no {wanted}"
            )


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_explains_itself(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    if name == "announced_run":  # it changes the reporter of its process
        command = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        code, out = answer.returncode, answer.stdout
    else:
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        monkeypatch.delitem(sys.modules, f"benchmarks.{name}", raising=False)
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(f"benchmarks.{name}", run_name="__main__")
        code, out = int(ended.value.code or 0), capsys.readouterr().out
    assert code == 0
    assert "usage" in out.lower()
