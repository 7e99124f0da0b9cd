"""Files that people name are read whole or refused, without waiting and without end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage import text
from storage.errors import PromptFileError
from storage.text import is_loopback, is_text, parse_json, read_text_file, web_address


def refusal(path: Path | str) -> str:
    with pytest.raises(PromptFileError) as refused:
        read_text_file(path, "the file", PromptFileError)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_cannot_be_read_is_refused(tmp_path: Path):
    assert "the file cannot be read: No such file or directory; check the path" in refusal(tmp_path / "x")
    assert "is a folder, not a file" in refusal(tmp_path)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert "symbolic links" in refusal(tmp_path / "circle")
    assert "null byte" in refusal(tmp_path / "a\0b")
    assert "too long" in refusal(tmp_path / ("x" * 300))
    assert "home directory" in refusal("~nobody-of-this-name/x")


def test_what_would_never_end_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    os.mkfifo(tmp_path / "pipe")
    assert "is a device or pipe, not a file" in refusal(tmp_path / "pipe")
    assert "is a device or pipe, not a file" in refusal("/dev/zero")
    monkeypatch.setattr(text, "LARGEST_FILE_BYTES", 3)
    (tmp_path / "large").write_text("four")
    assert "has 4 bytes, above the 3 that are read" in refusal(tmp_path / "large")
    (tmp_path / "just read").write_text("abc")
    assert read_text_file(tmp_path / "just read", "the file", PromptFileError) == "abc"


def test_text_is_utf8_with_or_without_a_mark(tmp_path: Path):
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert read_text_file(tmp_path / "marked", "the file", PromptFileError) == "a\nb"
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    assert "not UTF-8 at byte 3" in refusal(tmp_path / "latin")
    assert is_text("café 😀\n")
    assert not is_text("a\0b")
    assert not is_text("half \ud83d")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.5.6.7", "127.1", "127.0.1", "localhost", "::1"])
def test_a_loopback_address_is_known_in_every_form(host: str):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "10.127.0.1", "128.1", "::", "127.example.org", "localhost.example.org", "127.1\0"],
)
def test_what_other_machines_may_reach_is_no_loopback_address(host: str):
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("address", "is_one"),
    [
        ("http://h", True), ("https://h:1/x", True), ("ftp://h", False), ("http://", False),
        ("http://h:0", False), ("http://h:x", False), ("http://[::1", False),
    ],
)  # fmt: skip
def test_an_address_of_the_web_has_a_scheme_and_a_host(address: str, is_one: bool):
    assert (web_address(address) is not None) is is_one


def test_what_is_no_json_is_refused_by_its_line_and_column():
    for given, at in (("{oops", "column 2"), ('{"a":\n oops}', "line 2 column 2")):
        with pytest.raises(PromptFileError, match=rf"^the file: not JSON \([^:]* at {at}\); save it again$"):
            parse_json(given, "the file", PromptFileError, "save it again")
