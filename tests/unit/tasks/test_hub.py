"""`spotlight export --push`, against a local server that speaks the hub's upload calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, ServerError
from storage.home import Home
from tasks.export import export_to_hub
from tests.hub_server import TOKEN, HubServer, hub_server
from tests.unit.tasks.test_export import finished_run

LORA = RunConfig.model_validate({"adaptation": {"mode": "lora", "rank": 2}})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    home = Home(tmp_path / "home").ensure()
    finished_run(home, LORA)
    return home


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_server() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def test_the_exported_folder_arrives_whole(home: Home, hub: HubServer, tmp_path: Path):
    answer = export_to_hub(home, "a-run", "lora", None, dry_run=False)
    assert answer["pushed"] == f"{hub.url}/me/lora"
    assert [one["name"] for one in hub.repositories] == ["lora"]
    folder = tmp_path / "lora"
    assert hub.files == {name: (folder / name).read_bytes() for name in answer["files"]}
    assert set(hub.files) == {"README.md", "pytorch_lora_weights.safetensors"}
    card = hub.files["README.md"].decode()
    for part in ('license: "apache-2.0"', "| Evidence | one run, seed 0, on ", "## Settings", '"rank": 2'):
        assert part in card, part
    assert "base_model" not in card, "an embedded model is none of the hub's"


def test_a_dry_run_needs_no_token_and_says_what_would_be_uploaded(home: Home, tmp_path: Path):
    answer = export_to_hub(home, "a-run", "me/lora", tmp_path / "out", dry_run=True)
    assert answer["would_push"] == "me/lora"
    sizes = [(tmp_path / "out" / name).stat().st_size for name in answer["files"]]
    assert answer["bytes"] == sum(sizes) > 0


def test_what_would_fail_is_refused_before_anything_is_written(
    home: Home, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refusal(kind: type[Exception], name: str = "me/lora") -> str:
        with pytest.raises(kind) as refused:
            export_to_hub(home, "a-run", name, None, dry_run=False)
        assert not (tmp_path / "lora").exists() and hub.repositories == []
        assert "\n" not in str(refused.value)
        return str(refused.value)

    assert "--push 'me/lo ra': " in refusal(ConfigurationError, "me/lo ra")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "Invalid user token" in refusal(ServerError)
    monkeypatch.setenv("HF_TOKEN", "")
    assert "needs a Hub token, but none was found" in refusal(ConfigurationError)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "check the network" in refusal(ServerError)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "run `pip install huggingface_hub`" in refusal(ConfigurationError)
