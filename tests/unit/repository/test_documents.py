"""README and docs: their size, their links, their commands, the settings and figures that they name."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.documents import measurements
from flows.cli.command_line import app
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.errors import RunNotFoundError
from tests.documents import (
    DOCUMENTS,
    ROOT,
    Command,
    anchors,
    bracketed_options,
    commands,
    links,
    name_of,
    spans,
)

COMMANDS = list(commands())
BENCHMARKS = sorted(measurements.sources())


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def shown(program: str) -> list[Command]:
    return [command for command in COMMANDS if command.program == program]


def test_the_readme_is_short():
    readme = text_of("README.md")
    assert len(readme.splitlines()) <= 120
    assert len(readme.split()) <= 1000


def test_the_readme_lists_every_document():
    listed = {target for target in links(text_of("README.md")) if target.endswith(".md")}
    assert {name_of(path) for path in (ROOT / "docs").rglob("*.md")} <= listed


@pytest.mark.parametrize("page", sorted((ROOT / "docs/how-to").glob("*.md")), ids=lambda page: page.stem)
def test_how_to_pages_are_short_and_say_what_to_type(page: Path):
    assert len(page.read_bytes()) <= 6_000
    assert [command for command in shown("spotlight") if command.place.startswith(name_of(page))]


def test_the_site_shows_every_document():
    """mkdocs itself warns of an entry without a file, and not of a file without an entry."""
    nav = text_of("mkdocs.yml").partition("\nnav:")[2]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not re.search(rf"[ -] {re.escape(page)}$", nav, re.M)} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_to_files_and_headings(document: Path):
    for target in links(document.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = document.parent / file if file else document
        assert path.exists(), f"{document.name} links to {target}: no such file"
        if anchor:
            headings = anchors(path.read_text(encoding="utf-8"))
            assert anchor in headings, f"{document.name} links to {target}: no such heading"


def test_pictures_are_small_and_shown_somewhere():
    pictures = list((ROOT / "docs" / "images").iterdir())
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    assert [path.name for path in pictures if not any(f"images/{path.name})" in text for text in texts)] == []
    assert [path.name for path in pictures if path.stat().st_size > 250_000] == []
    assert sum(path.stat().st_size for path in pictures) < 1_500_000


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_code_that_documents_name_exists(document: Path):
    """`file.py::name` in a document: the file has that name in it."""
    for file, name, method in re.findall(
        r"`([\w/]+\.py)::(\w+)(?:\.(\w+))?`", document.read_text(encoding="utf-8")
    ):
        source = text_of(file)
        for wanted in filter(None, (name, method)):
            assert re.search(rf"\b(def|class) {wanted}\b|^{wanted}\b", source, re.M), (
                f"{document.name}: {file} has no {wanted}"
            )


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_files_that_documents_name_exist(document: Path):
    folders = "benchmarks|docs|examples|flows|gpu_runtime|presets|storage|tasks|tests|ui"
    for span in spans(document.read_text(encoding="utf-8")):
        if re.fullmatch(rf"(?:{folders})/[\w./-]+", span) and "NAME" not in span:
            assert (ROOT / span).exists(), f"{document.name} names {span}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_settings_that_documents_name_exist(document: Path):
    sections = {
        name: field.annotation.model_fields
        for name, field in RunConfig.model_fields.items()
        if isinstance(field.annotation, type) and hasattr(field.annotation, "model_fields")
    }
    named = re.compile(rf"(?:^|SPOTLIGHT_|--set )({'|'.join(sections)})\.([a-z_]+)(?![\w(/:]|\.py)")
    for span in spans(document.read_text(encoding="utf-8")):
        for section, field in named.findall(span):
            if field not in ("py", "safetensors"):  # files
                assert field in sections[section], f"{document.name}: no setting {section}.{field}"


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.M))
    for command in shown("make"):
        wanted = [word for word in command.words if "=" not in word]
        assert set(wanted) <= targets, command.place


def test_commands_of_spotlight_parse():
    group = typer.main.get_command(app)
    known_commands: dict[str, Any] = getattr(group, "commands")  # noqa: B009 - typer brings its own click
    assert len(shown("spotlight")) > 50
    wrong: list[str] = []
    for command in shown("spotlight"):
        if not command.words or command.words[0].startswith("-"):
            continue
        name, *given = command.words
        assert name in known_commands, command.place
        if given and "--help" not in given:  # a mention without arguments is no command to copy
            try:
                known_commands[name].make_context(name, given)
            except RunNotFoundError:
                pass  # `last`, in a home without runs
            except Exception as error:  # noqa: BLE001  (of the click that typer carries)
                wrong.append(f"{command.place}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "name", sorted({command.words[0] for command in shown("spotlight") if command.words})
)
def test_commands_of_spotlight_have_help(name: str):
    answer = CliRunner().invoke(app, ["--help"] if name.startswith("-") else [name, "--help"])
    assert answer.exit_code == 0
    assert "Usage" in answer.output


def test_settings_of_commands_are_accepted():
    checked = 0
    for command in shown("spotlight"):
        sets = command.values("--set")
        presets = [name for name in command.values("--preset") if name.islower()]
        if sets or presets:
            load_config(presets[0] if presets else None, sets, {})
            checked += 1
    assert checked > 10


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_explain_themselves_and_know_the_options_of_documents(
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
    unknown = {option for option in bracketed_options(f"benchmarks.{name}") if option not in out}
    assert not unknown, f"documents show {unknown} for benchmarks.{name}"


def test_no_two_benchmarks_have_one_name():
    """`python -m benchmarks.NAME` runs the first one that it finds."""
    files = [file.stem for file in (ROOT / "benchmarks").rglob("*.py") if not file.stem.startswith("__")]
    assert sorted(set(files)) == sorted(files)


def test_documents_name_benchmarks_that_exist():
    named = {command.program for command in COMMANDS if command.program.startswith("benchmarks.")}
    assert named
    assert {name.removeprefix("benchmarks.") for name in named} <= set(BENCHMARKS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_python_of_documents_compiles_and_uses_names_of_the_module(document: Path):
    door = ROOT / "spotlight.py"
    offered = (
        re.search(r"^__all__ = (\[.*?\])", door.read_text("utf-8"), re.M | re.S) if door.exists() else None
    )
    for snippet in re.findall(r"^```python\n(.*?)^```$", document.read_text("utf-8"), re.M | re.S):
        compile(snippet, document.name, "exec")
        if offered:
            used = set(re.findall(r"\bspotlight\.(\w+)", snippet))
            assert used <= set(ast.literal_eval(offered[1])), document.name


def test_measurements_and_the_readmes_results_are_those_of_the_kept_results():
    out_of_date = [
        str(path.relative_to(ROOT))
        for path, text in measurements.generated().items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert not out_of_date, f"run `{measurements.RENEW}` for {out_of_date}"
