"""Things that settings name: found, imported, refused in words; their options read, stored and compared."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from pydantic import Field

from gpu_runtime.exploration.registry import STRATEGIES, StrategyPlugin
from gpu_runtime.rewards.registry import (
    SCORERS,
    ScorerPlugin,
    build_scorer,
    chosen_scorer,
    read_scorer_options,
)
from storage.config.loading import differences, list_presets, load_config
from storage.config.plugins import (
    HubModel,
    ModelName,
    NoOptions,
    ProcessorName,
    Registry,
    as_values,
    hub_models,
    read_options,
)
from storage.config.run_config import RewardConfig, RunConfig
from storage.config.section import Section
from storage.errors import ConfigurationError
from storage.prompts.files import PromptRecord

DROPPED = " (a.options={} drops what a preset says there)"

SCORER = """
from gpu_runtime.scheduling.scores import Score
from gpu_runtime.rewards.registry import ScorerPlugin
from storage.config.plugins import ModelName
from storage.config.section import Section



class Options(Section):
    level: int
    model: ModelName = "somebody/model"

class Level:
    name = "level"

    def __init__(self, options):
        self.options = options

    def check(self, prompt):
        pass

    def score(self, image_HWC, prompt):
        return Score(float((image_HWC >= self.options.level).mean()), False, "")

class Inside:
    plugin = ScorerPlugin(Level, Options, gives_verdict=False)

plugin = Inside.plugin
"""

Write = Callable[..., str]


class Options(Section):
    """Of a made-up thing."""

    steps: int = Field(ge=1, le=10)
    """Needed."""

    colour: str = "red"
    """Has a default."""

    model: ModelName = "somebody/model"
    processor: ProcessorName = "somebody/processor"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Write:
    """Writes a module into a folder of its own that is on sys.path; its name, which no other test has."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    written: list[str] = []

    def write(text: str = SCORER) -> str:
        written.append(f"made_up_{abs(hash(request.node.nodeid))}_{len(written)}")
        (folder / f"{written[-1]}.py").write_text(text)
        importlib.invalidate_caches()  # it may have looked into the folder within the same tick of its clock
        return written[-1]

    request.addfinalizer(lambda: [sys.modules.pop(name, None) for name in written])
    return write


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Makes a package look installed, with the entry points of its file."""
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def install(package: str, entry_points: str) -> None:
        described = folder / f"{package.replace('-', '_')}-1.0.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (described / "entry_points.txt").write_text(entry_points)
        importlib.invalidate_caches()

    return install


def refusal(name: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        SCORERS.find(name)
    assert str(refused.value).startswith("reward.scorer = ")
    return str(refused.value)


def test_the_project_s_own_are_found_without_an_import_of_what_they_build():
    things = Registry("a.thing", int, "nobody.declares_this", {"one": 1, "two": 2})
    assert (things.names(), things.find("two")) == (["one", "two"], 2)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("jpg", "did you mean jpeg?"),
        ("clipscore", "did you mean clip-score?"),
        ("zzzzzz", "unknown name; choose"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, near: str):
    said = refusal(name)
    assert near in said
    assert f"choose one of {', '.join(SCORERS.names())}, or write package.module:Name" in said


def test_a_scorer_of_a_module_is_found_built_and_judges(module: Write):
    name = module()
    settings = RewardConfig(scorer=f"{name}:plugin", options={"level": 100})
    image_HWC = np.array([[[0, 99, 100], [255, 0, 0]]], np.uint8)
    assert build_scorer(settings).score(image_HWC, PromptRecord(0, "a")).value == pytest.approx(2 / 6)
    assert SCORERS.find(f"{name}:Inside.plugin") is SCORERS.find(f"{name}:plugin")
    with pytest.raises(ConfigurationError, match="never calls an image exact"):
        chosen_scorer(settings.model_copy(update={"signal": "exact"}))


def test_nothing_is_imported_before_it_is_asked_for(module: Write, installed: Callable[[str, str], None]):
    name = module()
    installed("made-up-lazy", f"[spotlight.scorers]\nlazy = {name}:plugin\n")
    assert "lazy" in SCORERS.names()
    refusal("lasy")
    assert name not in sys.modules
    SCORERS.find("lazy")
    assert name in sys.modules


def test_an_entry_point_of_an_installed_package_is_a_short_name(
    module: Write, installed: Callable[[str, str], None]
):
    name = module()
    installed(
        "made-up-judges", f"[spotlight.scorers]\nlevel = {name}:plugin\n[others]\nnot-this = json:loads\n"
    )
    assert isinstance(SCORERS.find("level"), ScorerPlugin)
    assert "level" in SCORERS.names() and "not-this" not in SCORERS.names()
    assert "did you mean level?" in refusal("levl")
    assert chosen_scorer(RewardConfig(scorer="level", options={"level": 3})).values == {"level": 3}
    parts = {"jpeg": 1, "level": {"weight": 2, "level": 7}}
    assert chosen_scorer(RewardConfig(scorer="sum", options={"parts": parts})).values == {"parts": parts}


def test_an_entry_point_does_not_replace_one_of_the_project_s_own(installed: Callable[[str, str], None]):
    own = SCORERS.find("jpeg")
    installed("made-up-jpeg", "[spotlight.scorers]\njpeg = json:loads\n")
    assert SCORERS.find("jpeg") is own
    assert SCORERS.names().count("jpeg") == 1


def test_two_packages_with_the_same_name_are_refused_unless_they_mean_the_same(
    module: Write, installed: Callable[[str, str], None]
):
    first, second = module(), module()
    installed("made-up-a", f"[spotlight.scorers]\nlevel = {first}:plugin\nsame = {first}:plugin\n")
    installed("made-up-b", f"[spotlight.scorers]\nlevel = {second}:plugin\nsame = {first}:plugin\n")
    said = refusal("level")
    assert "several installed packages define that name" in said
    assert f"({first}:plugin, {second}:plugin); write which one" in said
    assert SCORERS.find(f"{second}:plugin") is not SCORERS.find(f"{first}:plugin") is SCORERS.find("same")
    assert SCORERS.names().count("level") == 1


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("no_such_module_of_ours:plugin", "(ModuleNotFoundError: No module named 'no_such_module_of_ours')"),
        ("{module}:nothing", "(AttributeError: "),
        ("{module}:Inside.nothing", "(AttributeError: "),
        ("{module}:", "(AttributeError: "),
        (":plugin", "(ValueError: "),
        (".{module}:plugin", "(TypeError: "),
    ],
)
def test_what_cannot_be_imported_is_refused(module: Write, path: str, says: str):
    path = path.format(module=module())
    said = refusal(path)
    assert f"{path!r} cannot be imported {says}" in said
    assert said.endswith("check the name, and that its folder is installed or in PYTHONPATH")


def test_a_file_or_a_function_that_is_missing_is_said_with_what_there_is(tmp_path: Path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from math import sin\nfrom gpu_runtime.rewards.registry import ScorerPlugin\n_LIMIT = 1\n\n"
        "def dark(image, prompt): ...\n\ndef raw(image, prompt): ...\n\nplugin = ScorerPlugin(raw)\n"
    )
    assert refusal(f"{mine}:nothere").endswith(f"'{mine}' has no 'nothere'; it has dark, raw, plugin")
    assert refusal(f"{tmp_path}/gone.py:dark").endswith(f"'{tmp_path}/gone.py' does not exist")
    (tmp_path / "bad.py").write_text("import no_such_library_of_ours")
    assert refusal(f"{tmp_path}/bad.py:dark").endswith("_of_ours'); correct it, or install what it imports")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_such_library_of_ours", "ModuleNotFoundError: No module named 'no_such_library_of_ours'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError: invalid syntax"),
    ],
)
def test_a_module_that_fails_is_refused(
    module: Write, installed: Callable[[str, str], None], text: str, says: str
):
    name = module(text)
    installed("made-up-broken", f"[spotlight.scorers]\nbroken = {name}:plugin\n")
    assert says in refusal(f"{name}:plugin")
    assert f"reward.scorer = 'broken': '{name}:plugin' cannot be imported ({says}" in refusal("broken")


def test_another_kind_is_refused(module: Write):
    name = module()
    said = refusal(f"{name}:Level")
    assert (
        f"'{name}:Level' is a type, not a ScorerPlugin; name one (see gpu_runtime.rewards.registry)" in said
    )


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({}, ["a.options.steps has no value; set a.options.steps=..."]),
        ({"steps": 0}, ["a.options.steps = 0: must be at least 1; raise it"]),
        ({"steps": 11}, ["a.options.steps = 11: must be at most 10; lower it"]),
        ({"steps": "many"}, ["a.options.steps = 'many': must be a whole number"]),
        ({"steps": True}, ["a.options.steps = True: must be a whole number"]),
        ({"steps": 1, "colour": 3}, ["a.options.colour = 3: must be text (default 'red')"]),
        (
            {"steps": 1, "color": "x"},
            ["a.options.color: no such setting; did you mean a.options.colour?" + DROPPED],
        ),
        (
            {"steps": 1, "zzzzzz": 0},
            [
                "a.options.zzzzzz: no such setting; section a.options has steps, colour, model, processor"
                + DROPPED
            ],
        ),
        (
            {"colour": None, "model": 7},
            [
                "a.options.steps has no value; set a.options.steps=...",
                "a.options.colour = None: must be text (default 'red')",
                "a.options.model = 7: must be text (default 'somebody/model')",
            ],
        ),
    ],
)
def test_wrong_options_are_refused_in_words(values: dict[str, Any], lines: list[str]):
    with pytest.raises(ConfigurationError) as refused:
        read_options("a.options", Options, values)
    head = [f"{len(lines)} settings are wrong:"] if len(lines) > 1 else []
    assert str(refused.value).splitlines() == head + lines


def test_where_there_are_no_options_none_is_taken():
    assert as_values(read_options("a.options", NoOptions, {})) == {}
    with pytest.raises(
        ConfigurationError, match=r"^a\.options\.x: no such setting; section a\.options has none \("
    ):
        read_options("a.options", NoOptions, {"x": 1})


def test_folders_become_absolute_and_other_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for given, stored in (
        ("here", str(tmp_path / "here")),
        ("./here/../here", str(tmp_path / "here")),
        ("~/here", str(tmp_path / "here")),
        ("nobody/model", "nobody/model"),
        ("file", "file"),
    ):
        options = read_options("a.options", Options, {"steps": 1, "model": given, "processor": given})
        assert as_values(options) == {"steps": 1, "model": stored, "processor": stored}


def test_only_what_was_set_is_stored():
    assert as_values(read_options("a.options", Options, {"steps": 4})) == {"steps": 4}


def test_options_that_name_models_are_known():
    options = read_options("a.options", Options, {"steps": 1})
    assert hub_models(options) == {"model": HubModel(), "processor": HubModel(weights=False)}
    assert HubModel().weights


WITH_REWARD = [one.name for one in list_presets() if load_config(one.name, [], {}).reward.scorer]


@pytest.mark.parametrize("preset", WITH_REWARD)
def test_every_preset_s_reward_is_known_and_its_options_are_read(preset: str):
    config = load_config(preset, [], {})
    assert read_scorer_options(config) == config


def test_parts_of_a_sum_have_options_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Write
):
    (tmp_path / "clip").mkdir()
    monkeypatch.chdir(tmp_path)
    own = f"{module()}:plugin"
    parts = {
        "ocr": {"weight": 0.5, "layout": "page"},
        "jpeg": 0.25,
        "shapes": {"weight": 0.25},
        "clip-score": {"weight": 1, "clip": "clip"},
        own: {"weight": 2, "level": 9, "model": "clip"},
    }
    chosen = chosen_scorer(RewardConfig(scorer="sum", options={"parts": parts}))
    assert [(judge.name, judge.weight) for judge in chosen.judges] == [
        ("ocr", 0.5),
        ("jpeg", 0.25),
        ("shapes", 0.25),
        ("clip-score", 1),
        (own, 2),
    ]
    assert [judge.section for judge in chosen.judges] == [f"reward.options.parts.{name}" for name in parts]
    assert chosen.values == {
        "parts": {
            "ocr": {"weight": 0.5, "layout": "page"},
            "jpeg": 0.25,
            "shapes": 0.25,
            "clip-score": {"weight": 1, "clip": str(tmp_path / "clip")},
            own: {"weight": 2, "level": 9, "model": str(tmp_path / "clip")},
        }
    }


@pytest.mark.parametrize(
    "reward",
    [
        {"scorer": "ocr", "options": {"layout": "page"}},
        {"scorer": "deepseek-ocr", "options": {"reader": "nobody/reader", "tokens": 64}},
        {"scorer": "remote", "options": {"url": "http://judge/score", "timeout_s": 20, "backoff_s": 0.25}},
        {"scorer": "sum", "options": {"parts": {"jpeg": 1, "ocr": {"weight": 0.5, "layout": "page"}}}},
    ],
)
def test_options_travel(reward: dict[str, Any]):
    read = read_scorer_options(RunConfig.model_validate({"reward": reward}))
    assert read.reward.options == reward["options"], "what was set, and nothing else"
    assert differences(read) == {"reward": {k: v for k, v in reward.items() if v != "ocr"}}
    for again in (
        RunConfig.model_validate_json(read.model_dump_json()),
        RunConfig.model_validate(differences(read)),
        load_config(None, [], {}, read),
    ):
        assert again == read
        assert read_scorer_options(again) == read


def test_an_option_of_an_earlier_run_is_changed_alone():
    sets = ["reward.scorer=remote", "reward.options.url=http://judge/score", "reward.options.queue=2"]
    earlier = load_config(None, sets, {})
    changed = load_config(None, ["reward.options.queue=3"], {}, earlier)
    assert changed.reward.options == {"url": "http://judge/score", "queue": 3}
    assert (
        load_config(None, [], {"SPOTLIGHT_REWARD__OPTIONS__QUEUE": "5"}, earlier).reward.options["queue"] == 5
    )


def test_a_file_may_define_dataclasses_with_postponed_annotations(tmp_path: Path):
    file = tmp_path / "made.py"
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    file.write_text(head + "raise RuntimeError('not yet')\n")
    with pytest.raises(ConfigurationError, match="not yet"):
        _things().find(f"{file}:thing")
    file.write_text(head + "@dataclass\nclass Thing:\n    size: int = 3\nthing = Thing().size\n")
    assert _things().find(f"{file}:thing") == 3


def _things() -> Registry[int]:
    return Registry("a.thing", int, "spotlight.made_up", {})


def test_spotlights_own_code_is_no_source(tmp_path: Path):
    """An upgrade would otherwise refuse to resume a run with a plug-in that builds on it."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from gpu_runtime.exploration.registry import StrategyPlugin\n"
        "from gpu_runtime.exploration.strategies.auto import Auto\n"
        "MINE = StrategyPlugin(Auto)\n"
    )
    assert STRATEGIES.sources(f"{mine}:MINE") == [mine]


def test_what_is_typed_into_python_has_no_source(monkeypatch: pytest.MonkeyPatch):
    typed = ModuleType("typed")
    exec("class Mine: pass", vars(typed))
    vars(typed)["MINE"] = StrategyPlugin(vars(typed)["Mine"])
    monkeypatch.setitem(sys.modules, "typed", typed)
    assert STRATEGIES.sources("typed:MINE") == []
