"""The password of a home's Prefect server: one for all, for its owner's eyes alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flows.server.password import home_password, password_file
from storage.errors import ServerError
from storage.home import Home


def test_all_that_ask_at_once_get_the_same_and_other_homes_another(tmp_path: Path):
    together = threading.Barrier(8)

    def ask(name: str) -> str:
        together.wait()
        return home_password(Home(tmp_path / name))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, "aaaabbbb"))
    assert len(set(found)) == 2
    assert len(found[0].removeprefix("spotlight:")) == 64
    assert [file.name for file in (tmp_path / "a" / "prefect").iterdir()] == ["password"]


def test_only_its_owner_can_read_it_also_where_that_was_changed(tmp_path: Path):
    password = home_password(Home(tmp_path))
    file = password_file(Home(tmp_path))
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    assert home_password(Home(tmp_path)) == password
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text", ["", "spotlight:", "short:word", "no-colon-in-these-thirty-characters", "é:" + 20 * "x"]
)
def test_a_file_without_a_password_is_refused(tmp_path: Path, text: str):
    file = password_file(Home(tmp_path))
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ServerError, match=r"does not hold a password .* delete it"):
        home_password(Home(tmp_path))


def test_one_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "prefect").write_text("no folder")
    with pytest.raises(ServerError, match="no server starts without one"):
        home_password(Home(tmp_path))
