"""README and docs: their size, their links, their commands, the settings and figures that they name."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel
from typer.testing import CliRunner

from benchmarks.documents import measurements
from benchmarks.exploration.arms import TASKS
from benchmarks.report import RESULTS
from flows.cli.command_line import app
from gpu_runtime.models.embedded.folder import WEIGHTS_FOLDER
from storage.config.loading import EVIDENCE, Preset, list_presets, load_config
from storage.config.model import EMBEDDED_PREFIX
from storage.config.run_config import RunConfig
from storage.config.settings_table import list_settings, settings_page
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
    python_of,
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
def test_files_and_code_that_documents_name_exist(document: Path):
    """`file.py::name` in a document: the file has that name in it."""
    folders = "benchmarks|docs|examples|flows|gpu_runtime|presets|storage|tasks|tests|ui"
    text = document.read_text("utf-8")
    for span in spans(text):
        if re.fullmatch(rf"(?:{folders})/[\w./-]+", span) and "NAME" not in span:
            assert (ROOT / span).exists(), f"{document.name} names {span}"
    for file, *names in re.findall(r"`([\w/]+\.py)::(\w+)(?:\.(\w+))?`", text):
        for name in filter(None, names):
            found = re.search(rf"\b(def|class) {name}\b|^{name}\b", text_of(file), re.M)
            assert found, f"{document.name}: {file} has no {name}"


def test_the_ways_through_the_code_pass_files_that_exist():
    """Each file has the end of its path in the table; `A … B` are those from A to B of the first way."""
    rows = re.findall(r"^\| ([^|]* → [^|]*) \| (\d+) \| (.*) \|$", text_of("docs/architecture.md"), re.M)
    assert len(rows) == 4
    files = [file for room in ("gpu_runtime", "storage") for file in (ROOT / room).rglob("*.py")]
    first: list[str] = []
    for way, count, cell in rows:
        passed: list[str] = []
        for part in cell.split(", "):
            begin, _, end = part.partition(" … ")
            passed += first[first.index(begin) : first.index(end) + 1] if end else [begin]
        first = first or passed
        assert len(set(passed)) == len(passed) == int(count), way
        for name in passed:
            found = [file for file in files if f"{file}".endswith(f"/{name}.py")]
            assert len(found) == 1, f"{way}: {name} is {found}"


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
    known: dict[str, Any] = getattr(group, "commands")  # noqa: B009 - typer brings its own click
    assert len(shown("spotlight")) > 50
    for command in shown("spotlight"):
        if not command.words or command.words[0].startswith("-"):
            continue
        name, *given = command.words
        assert name in known, command.place
        if given and "--help" not in given:  # a mention without arguments is not a command to copy
            try:
                known[name].make_context(name, given)
            except RunNotFoundError:
                pass  # `last`, in a home without runs
            except Exception as error:  # noqa: BLE001  (of the click that typer carries)
                pytest.fail(f"{command.place}: {error}")


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


def test_each_benchmark_has_one_name_and_those_of_documents_exist():
    """`python -m benchmarks.NAME` runs the first one that it finds."""
    files = [file.stem for file in (ROOT / "benchmarks").rglob("*.py") if not file.stem.startswith("__")]
    assert sorted(set(files)) == sorted(files)
    named = {command.program for command in COMMANDS if command.program.startswith("benchmarks.")}
    assert named
    assert {name.removeprefix("benchmarks.") for name in named} <= set(BENCHMARKS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_python_of_documents_compiles_and_uses_names_of_the_module(document: Path):
    offered = re.search(r"^__all__ = (\[.*?\])", text_of("spotlight.py"), re.M | re.S)
    assert offered
    for snippet in python_of(name_of(document)):
        compile(snippet, document.name, "exec")
        assert set(re.findall(r"\bspotlight\.(\w+)", snippet)) <= set(ast.literal_eval(offered[1])), (
            document.name
        )


def test_measurements_and_the_readmes_results_are_those_of_the_kept_results():
    out_of_date = [
        str(path.relative_to(ROOT))
        for path, text in measurements.generated().items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert not out_of_date, f"run `{measurements.RENEW}` for {out_of_date}"


EXACT = 1e-5
"""Largest difference from diffusers that the README and the documents name."""


def kept(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["figures"] if path.is_file() else {}


def stages_done_on_a_gpu() -> set[str]:
    figures = kept("gpu_day")
    stages = figures.get("by_stage", {}) if figures.get("device", "cpu") != "cpu" else {}
    return {name for name, found in stages.items() if found["status"] == "done"}


def learned_tasks() -> set[str]:
    """Embedded tasks of which learning curves are kept, by the first word of the models that learn them."""
    names = [path.parent.name for path in (RESULTS / "curves").glob("exploration-*/*")]
    tasks = {name.removeprefix("exploration-") for name in names if kept(name)}
    learned = {task_of(TASKS[task].preset) for task in tasks}
    return learned | ({"moving-shapes"} if kept("moving_shapes").get("gain", 0) >= 0.1 else set())


def task_of(preset: str) -> str:
    path = load_config(preset, [], {}).model.path
    name = path.removeprefix(EMBEDDED_PREFIX)
    return name.removesuffix("-sparse") if path.startswith(EMBEDDED_PREFIX) else ""


def levels_shown(preset: Preset) -> set[str]:
    """Levels of evidence that kept results give a preset."""
    model, on_gpu = load_config(preset.name, [], {}).model, stages_done_on_a_gpu()
    same = {
        one["name"] for one in kept("families")["families"]
        if one["lora_roundtrip"] and max(one["max_abs_error"], one["lora_max_abs_error"]) <= EXACT
    }  # fmt: skip
    carried = model.path.startswith(EMBEDDED_PREFIX)
    found = {
        "tiny weights": model.family in same,
        "embedded run": carried and (WEIGHTS_FOLDER / model.path.removeprefix(EMBEDDED_PREFIX)).is_dir(),
        "embedded curve": task_of(preset.name) in learned_tasks(),
        "one GPU step": model.family == "qwen-image" and "qwen_image" in on_gpu,
        "GPU curve": carried and "learning" in on_gpu,
    }
    assert found.keys() == set(EVIDENCE)
    return {level for level, is_shown in found.items() if is_shown}


@pytest.mark.parametrize("preset", list_presets(), ids=lambda preset: preset.name)
def test_a_preset_claims_what_is_kept(preset: Preset):
    assert preset.evidence in levels_shown(preset)


def test_the_readme_claims_what_its_presets_do():
    table = text_of("README.md").partition("| models |")[2].partition("\n\n")[0]
    claims: dict[str, str] = {}
    for row in table.splitlines()[2:]:
        models, _, evidence = (cell.strip() for cell in row.strip("|").split("|"))
        named = re.findall(r"[A-Za-z][\w.-]+", models.removeprefix("embedded: "))
        claims |= {
            name.lower().replace("flux.1", "flux").replace("flux.2", "flux2"): evidence for name in named
        }
    for preset in list_presets():
        model = load_config(preset.name, [], {}).model
        name = task_of(preset.name) or model.family
        level = next(level for level in EVIDENCE if claims[name].startswith(level))
        assert preset.evidence == level or preset.name == "smoke", preset.name


MOST_SETTINGS = 91


def leaves(values: dict[str, Any], model: type[BaseModel], path: str = "") -> list[str]:
    """Names of all settings, counted from a configuration's own values. A table is one setting: what a
    plug-in's options are, the plug-in declares."""
    names: list[str] = []
    for name, value in values.items():
        kind = model.model_fields[name].annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names += leaves(value, kind, f"{path}{name}.")
        else:
            names.append(f"{path}{name}")
    return names


def test_the_settings_are_few_and_each_is_in_the_table_and_on_the_page():
    """`options` is no setting to choose: it holds those of a plug-in, which declares them."""
    entries = list_settings()
    names = [entry.name for entry in entries]
    assert sorted(names) == sorted(leaves(RunConfig().model_dump(), RunConfig))
    assert len([name for name in names if not name.endswith(".options")]) <= MOST_SETTINGS
    for entry in entries:
        assert len(entry.description) > 10 and entry.bounds, entry.name
    assert text_of("docs/reference/settings.md") == settings_page(), (
        "the page is not of these settings; run `spotlight settings --markdown > docs/reference/settings.md`"
    )
