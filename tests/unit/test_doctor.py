"""`spotlight doctor` on a machine that works and on one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows import doctor


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(doctor, "_FREE_GIB", 0.0)


def test_a_machine_that_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert doctor.examine()
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok") for line in lines)
    text = "\n".join(lines)
    assert f"{tmp_path / 'home'}, " in text
    assert "torch 2." in text
    assert "embedded:glyphs loads, ocr judges" in text


def test_what_is_wrong_is_said_and_the_rest_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(doctor, "_FREE_GIB", 1e9)
    monkeypatch.setattr(doctor, "_PACKAGES", ("a-package-that-is-not-there",))
    monkeypatch.setattr(doctor, "_road", lambda: "not asked")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    assert not doctor.examine()
    text = capsys.readouterr().out
    wrong = [line.split()[1] for line in text.splitlines() if line.startswith("wrong")]
    assert wrong == ["packages:", "home:", "prefect:"]
    assert "free some, or set SPOTLIGHT_HOME" in text
    assert "start it or unset the variable" in text
    assert "ok    database: 0 runs" in text


def test_brackets_and_libraries_that_do_not_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    def road() -> str:
        raise ImportError("libGL.so.1: cannot open shared object file [bold]")

    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "[red]home[/]"))
    monkeypatch.setattr(doctor, "_road", road)
    assert not doctor.examine()
    lines = capsys.readouterr().out.splitlines()
    assert "wrong model and scorer: libGL.so.1: cannot open shared object file [bold]" in lines
    assert any("/[red]home[/], " in line for line in lines)
    assert lines[-1].startswith("ok    prefect"), "the rest is checked"
