"""Refusals of plug-ins' names and options say where the value came from, as those of other settings do."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.config.loading import load_with_sources
from storage.errors import ConfigurationError
from tasks.checks.quick_checks import with_read_options


@pytest.mark.parametrize(
    ("sets", "environ", "says"),
    [
        (["reward.options.layout=pages"], {}, "reward.options.layout = 'pages' (from --set): must be one of"),
        (["reward.options.layuot=page"], {}, "reward.options.layuot (from --set): no such setting; did you"),
        (
            [],
            {"SPOTLIGHT_ALGORITHM__OPTIONS__CLIP_RANGE": "2"},
            "algorithm.options.clip_range = 2 (from SPOTLIGHT_ALGORITHM__OPTIONS__CLIP_RANGE): must be below",
        ),
        (["reward.scorer=OCR"], {}, "reward.scorer = 'OCR' (from --set): unknown name"),
        (
            ["algorithm.objective=no_such:Own"],
            {},
            "algorithm.objective = 'no_such:Own' (from --set): 'no_such:",
        ),
        (
            ["reward.scorer=sum", "reward.options={parts = {ocr = {weight = 1, layout = 2}}}"],
            {},
            "reward.options.parts.ocr.layout = 2 (from --set): must be one of",
        ),
        (
            ["reward.scorer=sum", "reward.options={parts = {nothing = 1}}"],
            {},
            "reward.options.parts = 'nothing': unknown name",
        ),
    ],
)
def test_refusals_of_plug_ins_say_where_the_value_came_from(
    sets: list[str], environ: dict[str, str], says: str
):
    with pytest.raises(ConfigurationError) as refused:
        with_read_options(*load_with_sources(None, sets, environ))
    assert str(refused.value).startswith(says)


def test_a_preset_is_named_as_the_source_of_its_option(tmp_path: Path):
    preset = tmp_path / "own.toml"
    preset.write_text("[reward.options]\nlayout = 3\n")
    config, sources = load_with_sources(str(preset), [], {})
    with pytest.raises(ConfigurationError, match=r"layout = 3 \(from preset .*own\.toml\): must be one of"):
        with_read_options(config, sources)
    with pytest.raises(ConfigurationError, match=r"^reward\.options\.layout = 3: must be one of"):
        with_read_options(config)
