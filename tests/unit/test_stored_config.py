"""Configurations that earlier versions stored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from storage.config.run_config import RunConfig
from storage.config.stored import carried_over, stored_config
from storage.errors import ConfigurationError

# Settings of an earlier version that are gone, as a run of defaults stored them.
GONE: dict[str, dict[str, Any]] = {
    "sampling": {"window_start": 0},
    "adaptation": {"rank": 32, "alpha": 64.0},
    "optimizer": {"beta1": 0.9, "weight_decay": 1e-4},
    "evaluation": {"gallery": 12},
    "checkpoint": {"keep": 2},
    "runtime": {
        "ray_address": "", "threads": 1, "scorer_limit_s": 1800.0, "trainer_limit_s": 7200.0,
        "commit_steps": 4, "commit_s": 1.0, "notice_url": "",
    },
    "price": {"device": "", "reserved_zone": "", "spot_zone": ""},
    "sequence_parallel": {"at_most": 64},
    "exploration": {
        "noise_aware": False, "history_half_life": 10.0, "gallery_prompts": 2, "allocation": "bandit",
    },
    "algorithm": {"clip_range": 1e-3, "nft_beta": 0.1, "nft_times": 5},
    "reward": {
        "ocr_layout": "line", "detector": "facebook/mask2former-swin-small-coco-instance",
        "clip": "openai/clip-vit-large-patch14", "pick": "yuvalkirstain/PickScore_v1",
        "pick_processor": "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
        "reader": "deepseek-community/DeepSeek-OCR-2", "reader_tokens": 128, "parts": {},
        "remote": {
            "url": "", "timeout_s": 60.0, "attempts": 4, "backoff_s": 0.5, "images_a_request": 8, "queue": 4,
        },
    },
}  # fmt: skip


def as_stored(**changes: dict[str, Any]) -> dict[str, Any]:
    """What an earlier version stored of a run of defaults with some changes."""
    stored = RunConfig().model_dump(mode="json")
    for values in (GONE, changes):
        for section, settings in values.items():
            stored[section] = stored[section] | settings
    return stored


def read(**changes: dict[str, Any]) -> RunConfig:
    return stored_config(as_stored(**changes), "run r", "use its commit")


def test_a_run_of_an_earlier_version_s_defaults_has_today_s():
    assert read() == RunConfig()
    assert stored_config(json.dumps(as_stored()), "run r", "") == RunConfig()
    assert carried_over(as_stored()) == RunConfig().model_dump(mode="json")


def test_what_this_version_stores_comes_back_as_it_was():
    config = RunConfig.model_validate({"runtime": {"commit_steps": 3, "cluster": "far:6379"}})
    assert stored_config(config.model_dump_json(), "run r", "") == config


@pytest.mark.parametrize(
    ("changes", "section", "options"),
    [
        ({"reward": {"ocr_layout": "page"}}, "reward", {"layout": "page"}),
        ({"reward": {"scorer": "geneval", "clip": "/a", "ocr_layout": "page"}}, "reward", {"clip": "/a"}),
        (
            {"reward": {"scorer": "remote", "remote": {"url": "http://a", "attempts": 4}}},
            "reward", {"url": "http://a"},
        ),
        (
            {"reward": {"scorer": "sum", "parts": {"jpeg": 0.5, "clip-score": 1.0}, "clip": "/a"}},
            "reward", {"parts": {"jpeg": 0.5, "clip-score": {"weight": 1.0, "clip": "/a"}}},
        ),
        ({"algorithm": {"clip_range": 1e-4, "nft_beta": 0.2}}, "algorithm", {"clip_range": 1e-4}),
        ({"algorithm": {"objective": "nft", "nft_beta": 0.2}}, "algorithm", {"beta": 0.2}),
    ],
)  # fmt: skip
def test_settings_that_plug_ins_declare_now_become_their_options(
    changes: dict[str, dict[str, Any]], section: str, options: dict[str, Any]
):
    assert getattr(read(**changes), section).options == options


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        ({"ray_address": "10.0.0.1:6379"}, {"cluster": "10.0.0.1:6379"}),
        ({"cluster": "local"}, {"cluster": "local"}),
        ({"commit_steps": 2, "commit_s": 0.0}, {"commit_steps": 2}),
        ({"commit_steps": 0}, {"commit_steps": 200}),
        ({"scorer_limit_s": 60.0}, {}),
        ({"notices": "gcp"}, {"notices": "gcp"}),
        ({"notices": "gcp", "notice_url": "http://far:80/x"}, {"notices": "gcp@http://far:80/x"}),
    ],
)
def test_settings_that_were_merged_are_carried_over(runtime: dict[str, Any], expected: dict[str, Any]):
    assert read(runtime=runtime) == RunConfig.model_validate({"runtime": expected})


def test_an_offer_of_a_price_book_is_carried_over():
    offer = {"book": "b.csv", "device": "H100", "reserved_zone": "here", "spot_zone": ""}
    assert read(price=offer).price.offer == "H100@here"
    assert read(price=offer | {"spot_zone": "there"}).price.offer == "H100@here,there"


def test_what_no_number_depends_on_is_dropped():
    changed = read(evaluation={"gallery": 0}, checkpoint={"keep": 9}, adaptation={"rank": 4, "alpha": 8.0})
    assert changed == RunConfig.model_validate({"adaptation": {"rank": 4}})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampling": {"window_start": 1}}, "sampling.window_start was 1, and is 0 in every run now"),
        ({"optimizer": {"beta1": 0.8}}, "optimizer.beta1 was 0.8, and is 0.9 in every run now"),
        ({"runtime": {"threads": 4}}, "runtime.threads was 4, and is 1 in every run now"),
        ({"adaptation": {"alpha": 32.0}}, "adaptation.alpha: Extra inputs"),
        ({"model": {"of_another_version": 1}}, "model.of_another_version: Extra inputs"),
    ],
)
def test_what_cannot_be_computed_any_more_is_refused(changes: dict[str, Any], said: str):
    with pytest.raises(ConfigurationError, match=r"run r was made with other settings.*use its commit") as no:
        read(**changes)
    assert said in str(no.value)


@pytest.mark.parametrize("stored", ["{", "[1]", "3", '{"sampling": 3}'])
def test_damaged_settings_are_refused(stored: str):
    with pytest.raises(ConfigurationError, match="run r"):
        stored_config(stored, "run r", "use its commit")
