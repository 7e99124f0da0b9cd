"""The documents as tests read them: their links, anchors and commands."""

from __future__ import annotations

import itertools
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "deploy/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
_BLOCK = re.compile(r"^ *```\w*\n(.*?)^ *```$|((?:^ {4,}\S[^\n]*\n)+)", re.M | re.S)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]*)\)")
_COMMAND = re.compile(
    r"^(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(spotlight|make|python -m benchmarks\.\w+)(?=\s|$)(.*)$"
)
_ENDS = (">", "|", "&&")
_PLACEHOLDER = re.compile(r"^[A-Z][A-Z_:-]*$")


def name_of(document: Path) -> str:
    """The document's path in the repository, for messages."""
    return document.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Command:
    """A command that a document shows.

    Attributes:
        place: file and text, for messages.
        program: `spotlight`, `make`, or the module of `python -m`.
        words: what follows it, without comments and without what stands in brackets.
    """

    place: str
    program: str
    words: tuple[str, ...]

    def values(self, option: str) -> list[str]:
        """What it gives for an option."""
        pairs = zip(self.words, self.words[1:], strict=False)
        given = [value for word, value in pairs if word == option]
        return [value for value in given if not _PLACEHOLDER.match(value.rpartition("=")[2])]


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return _FENCE.sub("", text)


def links(text: str) -> list[str]:
    """Targets of the text's links and pictures."""
    return _LINK.findall(prose(text))


def spans(text: str) -> list[str]:
    """What stands between backquotes."""
    return _SPAN.findall(prose(text))


def demo_s_end() -> list[str]:
    """The lines with which `make demo` ends, as the README shows them."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [shown] = [block for block in blocks(readme) if block.startswith("$ make demo")]
    return shown.splitlines()[1:]


def form(line: str) -> str:
    """A printed line without its numbers."""
    return re.sub(r"\d[\d,.]*", "0", line)


def blocks(text: str) -> list[str]:
    """The indented and fenced blocks, in the text's order, continued lines joined."""
    bodies = [textwrap.dedent(fenced or indented) for fenced, indented in _BLOCK.findall(text + "\n")]
    return [re.sub(r"\\\n\s*", "", body) for body in bodies]


def anchors(text: str) -> set[str]:
    """The anchors of the text's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


def python_of(document: str) -> list[str]:
    """The blocks of Python in a document, by its path in the repository."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands() -> Iterator[Command]:
    """Every `spotlight`, `make` and `python -m benchmarks.` command of the documents."""
    for path, line in _shown_lines():
        if found := _COMMAND.match(line.strip()):
            given = re.sub(r"(?<!=)\[[^\]]*\]|…", "", found[2])
            words = itertools.takewhile(lambda word: word not in _ENDS, shlex.split(given, comments=True))
            program = found[1].removeprefix("python -m ")
            yield Command(f"{name_of(path)}: {line.strip()}", program, tuple(words))


def bracketed_options(program: str) -> set[str]:
    """Options that documents show for a benchmark, those in brackets too."""
    shown = [line for _, line in _shown_lines() if re.search(rf"\b{re.escape(program)}(?=\s|$)", line)]
    return {option for line in shown for option in re.findall(r"(?<=[\s\[])--[a-z][a-z-]*", line)}


def _shown_lines() -> Iterator[tuple[Path, str]]:
    """Code spans, and lines of indented and fenced blocks, continued ones joined, with their documents."""
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        blocks = [
            body for _, language, body in _FENCE.findall(text) if language in ("", "sh", "bash", "shell")
        ]
        blocks += re.findall(r"(?:^ {4,}\S.*\n)+", prose(text) + "\n", re.M)
        lines = [line for block in blocks for line in re.sub(r"\\\n\s*", "", block).splitlines()]
        yield from ((path, line) for line in (*spans(text), *lines))
