"""A key of W&B is looked for before a run starts, wherever W&B itself would find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import ConfigurationError
from storage.readers.wandb_reader import refuse_without_login


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MODE", "API_KEY", "IDENTITY_TOKEN_FILE", "BASE_URL", "DIR"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_key_it_is_refused():
    with pytest.raises(ConfigurationError, match=r"no key for https://api\.wandb\.ai"):
        refuse_without_login()


@pytest.mark.parametrize(("name", "value"), [("MODE", "offline"), ("API_KEY", "k")])
def test_the_environment_is_enough(monkeypatch: pytest.MonkeyPatch, name: str, value: str):
    monkeypatch.setenv(f"WANDB_{name}", value)
    refuse_without_login()


def test_a_login_counts_for_its_own_server(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "netrc").write_text("machine api.wandb.ai login user password k\n")
    (folder / "netrc").chmod(0o600)
    refuse_without_login()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.com")
    with pytest.raises(ConfigurationError, match=r"no key for https://wandb\.example\.com"):
        refuse_without_login()


def test_its_settings_file_is_read(folder: Path):
    (folder / "settings").write_text("[default]\nmode = offline\n")
    refuse_without_login()
    (folder / "settings").write_text("mode")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        refuse_without_login()
