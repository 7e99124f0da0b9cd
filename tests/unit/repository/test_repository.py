"""The repository itself: its words, names and docstrings, what its modules import, how it installs."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grimp
import pytest

import build_backend
from gpu_runtime.exploration.registry import STRATEGIES
from gpu_runtime.fleet.capacity.registry import CAPACITY
from gpu_runtime.learning.registry import OBJECTIVES
from gpu_runtime.models.registry import FAMILIES
from gpu_runtime.rewards.registry import SCORERS
from gpu_runtime.spot.notices.registry import NOTICES

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("flows", "tasks", "gpu_runtime", "storage", "ui")
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


@pytest.mark.parametrize("room", ROOMS)
def test_each_folder_has_a_purpose_and_no_room_a_circle(room: str):
    [no_circle] = [contract for contract in import_contracts() if contract["type"] == "acyclic_siblings"]
    assert room in no_circle["ancestors"] and not no_circle.keys() & {"depth", "skip_descendants"}
    for folder in sorted(path.parent for path in (ROOT / room).rglob("*/__init__.py")):
        module = ".".join(folder.relative_to(ROOT).parts)
        purpose = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        assert purpose, f"{module}/__init__.py does not say what the folder is for"


def test_few_contracts_say_the_borders_and_no_import_is_exempt():
    contracts = import_contracts()
    assert len(contracts) <= 15
    assert not [contract["name"] for contract in contracts if "ignore_imports" in contract]


def import_contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["tool"]["importlinter"]["contracts"]


@pytest.mark.parametrize(
    ("room", "loose"), [("gpu_runtime", {"runtime.py"}), ("ui", set()), ("ui/pages", set())]
)
def test_no_file_of_a_room_is_loose(room: str, loose: set[str]):
    assert {path.name for path in (ROOT / room).glob("*.py")} == {"__init__.py"} | loose


def test_each_page_of_the_dashboard_is_a_folder():
    script = ROOT / "ui" / "server" / "app.py"
    assert not (script.parent / "pages").exists(), "Streamlit would serve its files before the login"
    listed = script.read_text(encoding="utf-8")
    for path in (ROOT / "ui" / "pages").glob("*/__init__.py"):
        assert f'"../pages/{path.parent.name}/page.py"' in listed


NAMES = {
    "admit": "register", "arrivals": "provisioner", "bench": "what it holds: runs, a context",
    "bite": "minimum batch", "born": "first, created", "bury": "record_failure, register_loss",
    "company": "sp_group", "complaint": "problem, error", "doomed": "targeted",
    "epoch_book": "GroupRegistry", "farewell": "barrier", "give_up_worker": "kill_hung_worker",
    "hear": "read, on_answer", "heard": "record, on_answer", "heed": "on_notice", "hinders": "prevents",
    "hold_own": "use_training_weights", "hungry": "eligible", "luck": "uniforms",
    "meeting_place": "rendezvous", "mend": "fix", "movable": "move", "own_weights": "training_weights",
    "pace": "step_times", "phase_end": "makespan", "played": "simulated, given", "player": "process",
    "players": "processes", "prey": "target", "rivals": "candidates", "road": "transport", "shelf": "queue",
    "striker": "killer", "take_place": "take_slot", "told": "arguments, known",
    "unborn": "left_out, not_created", "voice": "caller", "weight_road": "weight_transport",
    "welcome": "add_ready_workers", "worthless": "minimum gain",
}  # fmt: skip
"""Parts of names (of classes, functions, arguments, variables), and what to write instead."""

WHOLE_NAMES = {"cast": "processes", "look_before": "preflight", "lose": "on_worker_lost"}
"""Names that are fine as a part of others."""

TEXTS = re.compile(
    r"\b(nobody|somebody|anybody|everybody|someone|whoever|whomever|in peace|in vain|the dear ones"
    r"|worth a look|goes on on)\b",
    re.IGNORECASE,
)
"""In comments, docstrings and messages: a sentence has a subject that acts, such as "no worker"."""


MANY = 3
SPOKEN = {"self", "cls", "connection", "run_id", "home", "view", "store"}
"""Parameters that need no word: the type says all."""

CHOICES = {
    setting: set(registry.names())
    for setting, registry in (
        ("scorer", SCORERS), ("family", FAMILIES), ("objective", OBJECTIVES), ("strategy", STRATEGIES),
        ("notices", NOTICES), ("capacity", CAPACITY),
    )
}  # fmt: skip

Found = Iterator[tuple[int, str]]
"""Lines of a source, each with what is wrong there."""


def odd_names(source: str) -> Found:
    """Names with a word of the tables that a file defines: not what it uses of others."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case (
                ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                pass
            case _:
                continue
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")
        found = {word: better for word, better in NAMES.items() if f"_{word}_" in f"_{snake}_"}
        for word, better in (found | {snake: WHOLE_NAMES[snake]} if snake in WHOLE_NAMES else found).items():
            yield node.lineno, f"{name}: {word} is no word of the field; write {better}"


def odd_texts(source: str) -> Found:
    """Such words in comments and strings."""
    kinds = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            for found in TEXTS.finditer(token.string):
                line = token.start[0] + token.string.count("\n", 0, found.start())
                yield line, f"{found.group()!r}: say which worker, device, process or user it is"


def decisions(source: str) -> Found:
    """Comparisons, matches and lookups by a registered name: nothing outside its file asks for it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            subjects = values = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            patterns = [each for case in node.cases for each in ast.walk(case.pattern)]
            subjects, values = [node.subject], [each for each in patterns if isinstance(each, ast.MatchValue)]
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
            subjects, values = [node.slice], list(filter(None, node.value.keys))
        else:
            continue
        given = {getattr(each, "value", None) for value in values for each in ast.walk(value)}
        spoken = {
            getattr(each, name, None)
            for subject in subjects for each in ast.walk(subject) for name in ("attr", "id", "value")
        }  # fmt: skip
        for setting in CHOICES.keys() & spoken:
            yield from ((node.lineno, f"decides by {setting} {name!r}") for name in CHOICES[setting] & given)


@pytest.mark.parametrize(
    ("find", "rooms"),
    [
        (odd_names, (*ROOMS, "benchmarks", "examples")),
        (odd_texts, (*ROOMS, "benchmarks", "examples")),
        (decisions, ROOMS),
    ],
)
def test_the_code_speaks_the_field_s_language_and_asks_for_no_registered_name(
    find: Callable[[str], Found], rooms
):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {message}"
        for room in rooms
        for path in sorted((ROOT / room).rglob("*.py"))
        if find is not decisions or path.name != "registry.py"
        for line, message in find(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("find", "code", "says"),
    [
        (odd_names, "def heed(notice): ...", "write on_notice"),
        (odd_names, "self._told = 1", "write arguments"),
        (odd_names, "class PlayedTime: ...", "write simulated"),
        (odd_names, "def f(luck_RN): ...", "write uniforms"),
        (odd_names, "def lose(worker): ...", "write on_worker_lost"),
        (odd_names, "take_place = 1", "write take_slot"),
        (odd_names, "self.other.heed(1)", ""),
        (odd_names, "close = placed = spaced = 1", ""),
        (odd_names, "def lose_one(): ...", ""),
        (odd_texts, "# Nobody waits.", "'Nobody'"),
        (odd_texts, '"""A line.\n\nWhoever asks.\n"""', "'Whoever'"),
        (odd_texts, 'raise ValueError(f"{x} is somebody")', "'somebody'"),
        (odd_texts, '# Nobot waits.\n"""However."""', ""),
        (decisions, 'if config.exploration.strategy == "stale": pass', "strategy 'stale'"),
        (decisions, 'match config.model.family:\n    case "embedded" | "x": pass', "family 'embedded'"),
        (decisions, 'x = {"grpo": 1, "y": 2}[config.algorithm.objective]', "objective 'grpo'"),
        (decisions, 'if view.setting("exploration", "strategy") in ("plain", "x"): pass', "strategy 'plain'"),
        (decisions, 'strategy = 1\nif strategy != "fresh": pass', "strategy 'fresh'"),
        (decisions, 'if config.adaptation.mode == "lora" and strategy == other: pass', ""),
    ],
)
def test_the_searches_find_what_they_are_for(find: Callable[[str], Found], code: str, says: str):
    assert [says in message for _, message in find(code)] == [True] * bool(says)


def undescribed(sources: dict[str, str]) -> list[str]:
    """Public functions and methods with three parameters and no word on them, in modules by their place.

    A method may leave it to the one that it implements.
    """
    found, described = [], set()
    for place, source in sources.items():
        owners: list[tuple[str, ast.Module | ast.ClassDef]] = [(place, ast.parse(source))]
        for owner, tree in owners:
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    owners.append((f"{owner}:{node.name}", node))
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
                    continue
                named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                method = isinstance(tree, ast.ClassDef) and node.name
                if "Args:" in (ast.get_docstring(node) or ""):
                    described.add(method)
                elif sum(one.arg not in SPOKEN for one in named) >= MANY:
                    found.append((f"{owner}:{node.name}", method))
    return [place for place, method in found if not method or method not in described]


def test_public_functions_with_three_parameters_say_what_they_are():
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    commands = ROOT / "flows" / "cli"  # their options say it, for `--help`
    sources = {
        str(path.relative_to(ROOT)): path.read_text("utf-8") for path in files if commands not in path.parents
    }
    assert undescribed(sources) == []
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
    assert undescribed({"m": code}) == ["m:silent", "m:Public:method"]


def named_in(source: str, path: Path, modules: set[str]) -> set[str]:
    """Modules that a string names: dotted (`lazily`, `-m`), or by a path from here or the root."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            dotted = node.value.partition(":")[0]
            found |= {dotted, f"{dotted}.__main__"} if "." in dotted else set()
            if node.value.endswith(".py"):
                beside = os.path.relpath(os.path.normpath(path.parent / node.value), ROOT)
                found |= {name.removesuffix(".py").replace("/", ".") for name in (node.value, beside)}
    return found & modules


def test_every_module_can_be_reached_by_a_command():
    """Over imports, also inside functions, modules run as processes and pages served; not for types alone."""
    graph = grimp.build_graph(*ROOMS, exclude_type_checking_imports=True, cache_dir=None)
    modules = set(graph.modules)
    for name in modules:
        file = ROOT / name.replace(".", "/")
        path = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        for imported in (
            named_in(path.read_text("utf-8"), path, modules) | {name.rpartition(".")[0]} & modules
        ):
            graph.add_import(importer=name, imported=imported)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    starts = {target.partition(":")[0] for target in scripts.values()}
    deployed = re.findall(r"^\s*entrypoint: (\S+)\.py:", (ROOT / "prefect.yaml").read_text(), re.M)
    assert deployed
    starts |= {path.replace("/", ".") for path in deployed}
    unreachable = sorted(
        modules - starts - {each for one in starts for each in graph.find_upstream_modules(one)}
    )
    assert not unreachable, (
        f"no command, deployment or page reaches {', '.join(unreachable)}: give users a way to it, move "
        "it to benchmarks/ or tests/, or delete it"
    )


@pytest.mark.parametrize(
    ("source", "reached"),
    [
        ("importlib.import_module('tasks.work')", {"tasks.work"}),
        ("lazily('tasks.work:draw')", {"tasks.work"}),
        ("run([python, '-m', 'ui.report'])", {"ui.report", "ui.report.__main__"}),
        ("serve(root / 'tasks/work.py')", {"tasks.work"}),
        ("Page('../tasks/work.py')", {"tasks.work"}),
        ("Page('start.py')", {"flows.start"}),
        ("'''See tasks.work.'''", set()),
        ("'tasks'", set()),
    ],
)
def test_what_counts_as_a_way_to_a_module(source: str, reached: set[str]):
    modules = {"tasks", "tasks.work", "ui.report", "ui.report.__main__", "flows.start"}
    assert named_in(source, ROOT / "flows" / "begin.py", modules) == reached


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


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ("flows.post_train, gpu_runtime.runtime", UNWANTED),
        ("gpu_runtime.simulator.run", UNWANTED | {"ray", "duckdb", "mlflow", "pandas"}),
    ],
)
def test_the_driver_of_a_run_imports_none_of_its_workers_libraries(modules: str, unwanted: set[str]):
    code = f"import sys, {modules}; print(sorted({unwanted} & set(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "[]\n"
