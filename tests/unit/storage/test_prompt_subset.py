"""A part of a file of held-out prompts: every tag in its share, whatever the order of the rows."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage.config.loading import list_presets, load_config
from storage.prompts.files import PromptRecord, load_prompts
from storage.prompts.of_a_run import (
    compared_prompts,
    draw_subset,
    held_out_in_words,
    held_out_prompts,
    load_run_prompts,
)

GENEVAL = [preset.name for preset in list_presets() if "geneval" in preset.name]


def prompts(**tags: int) -> list[PromptRecord]:
    """So many prompts of each tag, sorted by it."""
    rows = [(tag, number) for tag, count in tags.items() for number in range(count)]
    return [PromptRecord(i, f"{tag} {n}", {"tag": tag}) for i, (tag, n) in enumerate(rows)]


def of_tags(drawn: Sequence[PromptRecord]) -> dict[str, int]:
    return dict(Counter(prompt.tag for prompt in drawn))


@pytest.mark.parametrize("preset", GENEVAL)
def test_geneval_presets_evaluate_every_kind_of_task_and_all_of_it_at_the_ends(preset: str):
    config = load_config(preset, [], {})
    _, held_out = load_run_prompts(config)
    part, whole = of_tags(compared_prompts(config, held_out)), of_tags(held_out)
    assert sum(part.values()) == config.evaluation.prompts == 96
    assert part.keys() == whole.keys() and len(whole) == 6
    assert all(abs(part[tag] - count * 96 / 553) < 1 for tag, count in whole.items())
    ends = [held_out_prompts(config, at) for at in (0, config.evaluation.every, config.iterations)]
    assert ends == [553, 96, 553]
    assert held_out_in_words(config) == (
        "the first and the last evaluation have all 553 held-out prompts (553 images each), the others 96 of "
        "553 held-out prompts, every tag in its share (96 images)"
    )


def test_shares_are_of_the_largest_remainders_and_no_tag_is_left_out():
    drawn = draw_subset(prompts(a=50, b=30, c=15, d=1), 10)
    assert of_tags(drawn) == {"a": 5, "b": 3, "c": 1, "d": 1}
    assert [one.prompt_id for one in drawn] == sorted(one.prompt_id for one in drawn)
    assert of_tags(draw_subset(prompts(a=50, b=30, c=15, d=1), 2)) == {"a": 1, "b": 1}
    assert of_tags(draw_subset(prompts(a=3, b=3), 6)) == {"a": 3, "b": 3}


def test_neither_order_nor_chance_has_a_say(tmp_path: Path):
    file, shuffled = Path("presets/prompts/geneval-evaluate.jsonl"), tmp_path / "shuffled.jsonl"
    lines = file.read_text().splitlines()
    random.Random(3).shuffle(lines)
    shuffled.write_text("\n".join(lines))
    ours, theirs = (draw_subset(load_prompts(path), 96) for path in (file, shuffled))
    assert {prompt.text for prompt in ours} == {prompt.text for prompt in theirs}
    assert len({prompt.text for prompt in ours}) == 96


def test_a_prompt_of_several_rows_is_drawn_again_only_where_no_other_is_left(tmp_path: Path):
    file = tmp_path / "four-times.jsonl"
    rows = [{"prompt": f"sign {n}", "tag": "ab"[n % 2]} for n in range(8) for _ in range(4)]
    file.write_text("\n".join(map(json.dumps, rows)))
    for count, times in ((8, {1}), (16, {2}), (12, {1, 2})):
        drawn = Counter(prompt.text for prompt in draw_subset(load_prompts(file), count))
        assert len(drawn) == 8 and set(drawn.values()) == times


def test_without_an_evaluation_between_there_is_no_part(tmp_path: Path):
    config = load_config("glyphs", ["evaluation.every=0"], {})
    _, held_out = load_run_prompts(config)
    assert compared_prompts(config, held_out) == held_out
    assert held_out_in_words(config) == "each evaluation has all 128 held-out prompts"
