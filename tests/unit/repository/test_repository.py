"""The repository itself: its words, names and docstrings, what its modules import, how it installs."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import build_backend
from gpu_runtime.exploration.registry import STRATEGIES
from gpu_runtime.fleet.capacity.registry import CAPACITY
from gpu_runtime.learning.registry import OBJECTIVES
from gpu_runtime.models.registry import FAMILIES
from gpu_runtime.rewards.registry import SCORERS
from gpu_runtime.spot.notices.watch import NOTICES
from tests.module_graph import ROOMS, modules, reachable

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


WORDED = ("flows", "gpu_runtime", "tasks", "storage", "ui", "benchmarks", "examples")

NAMES = {
    "admit": "register",
    "arrivals": "provisioner",
    "bench": "what it holds: runs, a context",
    "bite": "minimum batch",
    "born": "first, created",
    "bury": "record_failure, register_loss",
    "company": "sp_group",
    "complaint": "problem, error",
    "doomed": "targeted",
    "farewell": "barrier",
    "heard": "record, on_answer",
    "hear": "read, on_answer",
    "heed": "on_notice",
    "hinders": "prevents",
    "hungry": "eligible",
    "luck": "uniforms",
    "mend": "fix",
    "movable": "SupportsTo",
    "pace": "step_times",
    "played": "simulated, given",
    "player": "process",
    "players": "processes",
    "prey": "target",
    "rivals": "candidates",
    "road": "transport",
    "shelf": "queue",
    "striker": "killer",
    "told": "arguments, known",
    "unborn": "left_out, not_created",
    "voice": "caller",
    "welcome": "add_ready_workers",
    "worthless": "minimum gain",
}
"""Parts of names (of classes, functions, arguments, variables), and what to write instead."""

WHOLE_NAMES = {
    "cast": "processes",
    "epoch_book": "GroupRegistry",
    "give_up_worker": "kill_hung_worker",
    "hold_own": "use_training_weights",
    "look_before": "preflight",
    "lose": "on_worker_lost",
    "meeting_place": "rendezvous",
    "own_weights": "training_weights",
    "phase_end": "makespan",
    "take_place": "take_slot",
    "weight_road": "weight_transport",
}

TEXTS = re.compile(
    r"\b(nobody|somebody|anybody|everybody|someone|whoever|whomever|in peace|in vain|the dear ones"
    r"|worth a look|goes on on)\b",
    re.IGNORECASE,
)
"""In comments, docstrings and messages: a sentence has a subject that acts, such as "no worker"."""


def sources() -> Iterator[Path]:
    for room in WORDED:
        yield from sorted((ROOT / room).rglob("*.py"))


def defined_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of what a file defines: not what it uses of others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def odd_names(source: str) -> Iterator[tuple[int, str]]:
    """Line and message of every defined name with a word of the tables."""
    for line, name in defined_names(ast.parse(source)):
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")
        found = {part: NAMES[part] for part in snake.split("_") if part in NAMES}
        if snake in WHOLE_NAMES:
            found[snake] = WHOLE_NAMES[snake]
        for word, better in found.items():
            yield line, f"{name}: {word} is no word of the field; write {better}"


def odd_texts(source: str) -> Iterator[tuple[int, str]]:
    """Line and message of every such word in a comment or a string."""
    kinds = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            for found in TEXTS.finditer(token.string):
                line = token.start[0] + token.string.count("\n", 0, found.start())
                yield line, f"{found.group()!r}: say which worker, device, process or user it is"


@pytest.mark.parametrize("find", [odd_names, odd_texts])
def test_the_code_speaks_the_field_s_language(find):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {message}"
        for path in sources()
        for line, message in find(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def heed(notice): ...", "write on_notice"),
        ("self._told = 1", "write arguments"),
        ("class PlayedTime: ...", "write simulated"),
        ("def f(luck_RN): ...", "write uniforms"),
        ("def lose(worker): ...", "write on_worker_lost"),
        ("take_place = 1", "write take_slot"),
    ],
)
def test_names_of_the_tables_are_found(code: str, says: str):
    assert [says in message for _, message in odd_names(code)] == [True]


@pytest.mark.parametrize("code", ["self.other.heed(1)", "close = placed = spaced = 1", "def lose_one(): ..."])
def test_other_names_are_left_alone(code: str):
    assert list(odd_names(code)) == []


@pytest.mark.parametrize(
    "code", ["# Nobody waits.", '"""A line.\n\nWhoever asks.\n"""', 'raise ValueError(f"{x} is somebody")']
)
def test_texts_are_searched(code: str):
    assert len(list(odd_texts(code))) == 1
    assert list(odd_texts(code.replace("ody", "ot").replace("Whoever", "However"))) == []


SAID = ("flows", "tasks", "gpu_runtime", "storage", "ui")
COMMANDS = ROOT / "flows" / "cli"  # their options say it, for `--help`
MANY = 3
SPOKEN = {"self", "cls", "connection", "run_id", "home", "view", "store"}
"""Parameters that need no word: the type says all."""


@dataclass(frozen=True)
class Function:
    """One that has many parameters."""

    place: str
    name: str
    of_class: bool
    told: bool


def functions_with_many(tree: ast.Module | ast.ClassDef, place: str) -> Iterator[Function]:
    """Public ones of a module or class, and of its public classes."""
    of_class = isinstance(tree, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from functions_with_many(node, f"{place}:{node.name}")
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if sum(one.arg not in SPOKEN for one in named) >= MANY:
            told = "Args:" in (ast.get_docstring(node) or "")
            yield Function(f"{place}:{node.name}", node.name, of_class, told)


def untold(found: list[Function]) -> list[str]:
    """Those that say nothing of their parameters. A method may leave it to the one it implements."""
    told = {one.name for one in found if one.of_class and one.told}
    return [one.place for one in found if not one.told and not (one.of_class and one.name in told)]


def test_public_functions_with_three_parameters_say_what_they_are():
    files = [
        path for room in SAID for path in sorted((ROOT / room).rglob("*.py")) if COMMANDS not in path.parents
    ]
    found = [
        function
        for path in files
        for function in functions_with_many(
            ast.parse(path.read_text(encoding="utf-8")), str(path.relative_to(ROOT))
        )
    ]
    assert len(found) > 100
    assert untold(found) == []


def test_what_counts():
    code = '''
def told(a, b, c):
    """Args: all."""
def two(a, b): ...
def _own(a, b, c): ...
def silent(a, *, b, c): ...
class Protocol:
    def asked(self, a, b, c):
        """Args: all."""
class Public:
    def asked(self, a, b, c): ...
    def method(self, a, b, c): ...
    def two(self, a, b): ...
class _Own:
    def method(self, a, b, c): ...
'''
    assert untold(list(functions_with_many(ast.parse(code), "m"))) == ["m:silent", "m:Public:method"]


REPOSITORY = Path(__file__).resolve().parents[3]

CHOICES = {
    setting: set(registry.names())
    for setting, registry in (
        ("scorer", SCORERS), ("family", FAMILIES), ("objective", OBJECTIVES), ("strategy", STRATEGIES),
        ("notices", NOTICES), ("capacity", CAPACITY),
    )
}  # fmt: skip


def decisions(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, setting and name of every comparison, match and lookup by a registered name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            yield from _pairs(node.lineno, sides, sides)
        elif isinstance(node, ast.Match):
            patterns = [each for case in node.cases for each in ast.walk(case.pattern)]
            values = [each.value for each in patterns if isinstance(each, ast.MatchValue)]
            yield from _pairs(node.lineno, [node.subject], values)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
            yield from _pairs(node.lineno, [node.slice], [key for key in node.value.keys if key is not None])


def _pairs(line: int, subjects: list[ast.expr], values: list[ast.expr]) -> Iterator[tuple[int, str, str]]:
    constants = {
        inner.value
        for value in values
        for inner in ast.walk(value)
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
    }
    for setting, names in CHOICES.items():
        if names & constants and any(_speaks_of(setting, subject) for subject in subjects):
            yield from ((line, setting, name) for name in sorted(names & constants))


def _speaks_of(setting: str, node: ast.AST) -> bool:
    return any(
        (isinstance(inner, ast.Attribute) and inner.attr == setting)
        or (isinstance(inner, ast.Name) and inner.id == setting)
        or (isinstance(inner, ast.Constant) and inner.value == setting)
        for inner in ast.walk(node)
    )


def test_no_room_decides_by_a_registered_name() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{line} decides by {setting} {name!r}"
        for room in ROOMS
        for path in sorted((REPOSITORY / room).rglob("*.py"))
        if path.name != "registry.py"
        for line, setting, name in decisions(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        'if config.exploration.strategy == "stale": pass',
        'match config.model.family:\n    case "embedded" | "flux": pass',
        'x = {"grpo": 1, "nft": 2}[config.algorithm.objective]',
        'if view.setting("exploration", "strategy") in ("plain", "fresh"): pass',
        'strategy = 1\nif strategy != "fresh": pass',
    ],
)
def test_the_search_finds_what_it_is_for(code: str) -> None:
    assert list(decisions(ast.parse(code)))


def test_the_search_leaves_other_comparisons_alone() -> None:
    assert not list(decisions(ast.parse('if config.adaptation.mode == "lora" and strategy == other: pass')))


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


@pytest.mark.parametrize(
    "command", [("wheel", "--wheel-dir"), ("install", "--target")], ids=["wheel", "install"]
)
def test_what_would_copy_the_packages_is_refused_with_one_line(tmp_path: Path, command: tuple[str, str]):
    answer = subprocess.run(
        [
            sys.executable, "-m", "pip", command[0], "--no-deps", "--no-build-isolation", command[1],
            str(tmp_path), str(ROOT),
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    assert answer.returncode != 0
    assert [line.strip() for line in answer.stderr.splitlines() if "editable only" in line] == [
        build_backend.REFUSAL
    ]
    assert "[1 lines of output]" in answer.stderr, "the refusal and nothing else"
    assert list(tmp_path.iterdir()) == []


def test_an_editable_install_points_at_the_checkout(tmp_path: Path):
    code = "import flows, spotlight; print(flows.__file__, spotlight.__file__)"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == [str(ROOT / "flows" / "__init__.py"), str(ROOT / "spotlight.py")]


def test_an_editable_wheel_is_still_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a copy of what setuptools reads: it writes beside the sources."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "spotlight.py", "build_backend.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "__init__.py").touch()
    out = tmp_path / "out"
    out.mkdir()
    code = "import build_backend, sys; print(build_backend.build_editable(sys.argv[1]))"
    answer = subprocess.run(
        [sys.executable, "-c", code, str(out)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert [path.suffix for path in out.iterdir()] == [".whl"], answer.stdout


UNWANTED = {"torch", "diffusers", "transformers", "peft", "onnxruntime"}


def test_the_flow_of_a_run_imports_none_of_its_workers_libraries():
    code = f"import sys, flows.post_train, gpu_runtime.runtime; print(sorted({UNWANTED} & set(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "[]\n"
