"""Write docs/measurements.md, README, picture and profiles from the kept results.

`benchmarks/results/NAME.json` holds a result; `benchmarks/results/judgements.toml` holds its title, the
figures and tables to show, and a judgement. A template names a figure by its path in the result, as in
`{arms > stale > captured_variance:.2f}`, so no figure is typed by hand. Each judgement names the commit
of the result it was written for; a newer result is refused until the judgement is reread.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.documents import gpu_document
from benchmarks.documents.glance_picture import draw
from benchmarks.report import RESULTS, ROOT

JUDGEMENTS = RESULTS / "judgements.toml"
DOCUMENT = ROOT / "docs/measurements.md"
README = ROOT / "README.md"
GPUS = ROOT / "docs/gpus.md"
PICTURE = ROOT / "docs/images/at-a-glance.svg"
PROFILES = ROOT / "presets/profiles"
GPU = "gpu_day"
"""The result that needs no judgement, because documents show only its figures."""
RENEW = "python -m benchmarks.measurements"
GONE = ("objectives",)
"""Benchmarks without code: their commands run only at their results' commits."""

_PLACEHOLDER = re.compile(r"\{([^{}:]+)(?::([^{}]+))?\}")
_BEGIN, _END = f"<!-- {RENEW}: begin -->\n", f"<!-- {RENEW}: end -->"
_RUNS = re.compile(r"^if __name__ == \"__main__\":", re.M)
_MISSING = "–"
_USUAL_DEVICE = "x86_64, 2 cores"  # described in the introduction
_COUNT, _MEDIAN = "count", "median "


class JudgementError(ValueError):
    """A judgement that does not fit the kept results."""


def figure(figures: Any, path: str) -> Any:
    """Return the value at `path`, whose parts are joined by ` > `; a number indexes a list.

    Raises:
        JudgementError: no such figure.
    """
    value = figures
    for part in path.split(" > "):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise JudgementError(f"no figure {path!r}: {part!r} is not in the result") from error
    return value


def as_text(value: Any, spec: str = "") -> str:
    """Format a figure: numbers by `spec`, lists with commas, or reduced by `count` or `median FORMAT`."""
    if value is None:
        return _MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if spec == _COUNT:
        return str(len(value))
    if spec.startswith(_MEDIAN):
        known = [item for item in value if item is not None]
        return as_text(statistics.median(known), spec.removeprefix(_MEDIAN)) if known else _MISSING
    if isinstance(value, list):
        return ", ".join(as_text(item, spec) for item in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {as_text(item, spec)}" for name, item in value.items()) or "none"
    return format(value, spec)


def fill(template: str, figures: Any) -> str:
    """Return the template with each `{path:format}` replaced by its figure."""
    return _PLACEHOLDER.sub(lambda match: as_text(figure(figures, match[1]), match[2] or ""), template)


def cell(template: str, figures: Any) -> str:
    """Fill a table's cell: an empty figure leaves a dash without its unit."""
    found = _PLACEHOLDER.search(template)
    missing = found is not None and figure(figures, found[1]) is None
    return _MISSING if missing else fill(template, figures).replace("|", "\\|")


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    first, *rest = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return [first, "|" + "---|" * len(head), *rest, ""]


def paragraph(text: str) -> str:
    """Wrap the text to one width."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def sources() -> dict[str, Path]:
    """Return the file that `python -m benchmarks.NAME` runs, by name; some are a folder's `__main__.py`."""
    files = [file for file in (ROOT / "benchmarks").rglob("*.py") if _RUNS.search(file.read_text("utf-8"))]
    return {file.parent.name if file.stem == "__main__" else file.stem: file for file in sorted(files)}


def check_judgements(results: Mapping[str, Any], judgements: Mapping[str, Any]) -> None:
    """Check that each result is a study's, or has an up-to-date judgement in exactly one section.

    Raises:
        JudgementError: a result or judgement lacks its counterpart or is out of date.
    """
    judged, studies = judgements["result"], judgements["study"]["results"]
    if lacking := sorted(set(results) - set(judged) - set(studies)):
        raise JudgementError(f"results without an entry in {JUDGEMENTS.name}: {', '.join(lacking)}")
    if idle := sorted({*judged, *studies} - set(results)):
        raise JudgementError(f"entries of {JUDGEMENTS.name} without a kept result: {', '.join(idle)}")
    placed = [name for section in judgements["section"] for name in section["results"]]
    if sorted(placed) != sorted(judged):
        odd = sorted({name for name in [*placed, *judged] if placed.count(name) != 1})
        raise JudgementError(f"each result belongs to one section; check {', '.join(odd)}")
    for name, entry in judged.items():
        if entry["commit"] != results[name]["commit"]:
            raise JudgementError(
                f"{name}.json is of commit {results[name]['commit']}, its judgement of {entry['commit']}: "
                f"read the judgement again, then set `commit` in {JUDGEMENTS.name}"
            )


def result_lines(name: str, result: Mapping[str, Any], entry: Mapping[str, Any]) -> list[str]:
    """Return one result's lines: title, kind, figures, tables, judgement and origin.

    Raises:
        JudgementError: a named figure is not in the result, or its command runs no benchmark.
    """
    figures = result["figures"]
    command = entry.get("command", result["command"])
    try:
        runs = re.search(r"benchmarks\.(\w+)", command)
        if (runs is None or runs[1] not in sources()) and name not in GONE:
            raise JudgementError(f"{command!r} runs no benchmark of this repository; set `command`")
        lines = [f"### {entry['title']}", "", paragraph(fill(entry["kind"], figures)), ""]
        rows = [
            [fill(label, figures), cell(template, figures)] for label, template in entry.get("figures", [])
        ]
        lines += table(["figure", "value"], rows) if rows else []
        for shown in entry.get("tables", []):
            found, columns = figure(figures, shown["rows"]), shown["columns"]
            if isinstance(found, Mapping):
                found = [{"name": name, **row} for name, row in found.items()]
            cells = [[cell(text, row) for _, text in columns] for row in found]
            lines += table([label for label, _ in columns], cells)
        lines += [paragraph(fill(entry["judgement"], figures)), ""]
    except JudgementError as error:
        raise JudgementError(f"{name}: {error}") from error
    said = f"`{command.removesuffix(' --keep')}`{origin(name, result, command)}"
    if name in GONE:
        said = said.replace("python -m ", "").replace("`, commit", "` of commit")
    return [*lines, said, ""]


def origin(name: str, result: Mapping[str, Any], command: str = "") -> str:
    """Return a result's commit, date and device, and its file where the command does not name it."""
    file = "" if f"benchmarks.{name} " in command else f", `{name}.json`"
    device = "" if result["device"] == _USUAL_DEVICE else f", {result['device']}"
    return f"{file}, commit `{result['commit'][:7]}`, {result['date']}{device}."


def document(
    results: Mapping[str, Any], judgements: Mapping[str, Any], gpu: Mapping[str, Any] | None = None
) -> str:
    """Return the text of docs/measurements.md.

    Raises:
        JudgementError: a named figure is not in its result.
    """
    lines = ["# Measurements", "", f"<!-- Written by {RENEW}; edit {JUDGEMENTS.name} instead. -->", ""]
    lines += [
        judgements["introduction"].strip(),
        "",
        "## On a GPU",
        "",
        gpu_document.headline(gpu).strip() if gpu is None else "One GPU was at hand: [figures](gpus.md).",
        "",
    ]
    for section in judgements["section"]:
        lines += [f"## {section['title']}", "", *([section["text"].strip(), ""] if "text" in section else [])]
        for name in section["results"]:
            lines += result_lines(name, results[name], judgements["result"][name])
    studies = judgements["study"]  # their code is gone: a paragraph each, and the last commit with it
    lines += ["## Earlier studies", "", paragraph(fill(studies["text"], studies)), ""]
    for name, entry in studies["results"].items():
        try:
            said = fill(entry["says"], results[name]["figures"])
        except JudgementError as error:
            raise JudgementError(f"{name}: {error}") from error
        lines += [paragraph(f"**{entry['title']}.** {said} ({origin(name, results[name])[2:-1]})"), ""]
    return "\n".join(lines).rstrip() + "\n"


def with_block(text: str, block: str) -> str:
    """Return the document with `block` between its two marks.

    Raises:
        JudgementError: the marks are missing.
    """
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise JudgementError(f"a document has no block between {_BEGIN.strip()} and {_END}")
    return f"{before}{_BEGIN}\n{block}{_END}{after}"


def generated() -> dict[Path, str]:
    """Return the text of each file generated from the results.

    Raises:
        JudgementError: results and judgements do not match.
    """
    # By name; each has command, commit, device, date and figures.
    results = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    judgements = tomllib.loads(JUDGEMENTS.read_text(encoding="utf-8"))
    gpu = results.pop(GPU, None)
    check_judgements(results, judgements)
    figures = {name: result["figures"] for name, result in results.items()}
    headlines: list[str] = []  # the README's tables of results
    for shown in judgements["headline"]:
        headlines += table(shown["head"], [[cell(text, figures) for text in row] for row in shown["rows"]])
    return {
        **gpu_document.profiles(gpu, PROFILES),
        DOCUMENT: document(results, judgements, gpu),
        README: with_block(
            README.read_text(encoding="utf-8"),
            "\n".join([*headlines, gpu_document.headline(gpu)]),
        ),
        GPUS: with_block(GPUS.read_text(encoding="utf-8"), gpu_document.section(gpu)),
        PICTURE: draw(figures["exploration-ocr-graded"], figures["overlap"]),
    }


def main() -> int:
    """Write the files, or print which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if a file is out of date"
    )
    check = parser.parse_args().check
    try:
        files = generated()
    except JudgementError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    old = [path for path, text in files.items() if not path.is_file() or path.read_text("utf-8") != text]
    for path in old:
        print(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}")
        if not check:
            path.write_text(files[path], encoding="utf-8")
    return 1 if check and old else 0


if __name__ == "__main__":
    raise SystemExit(main())
