"""Signals: the first one ends the work in order, and further ones do not disturb that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows import stopping
from flows.stopping import Stopped, stops_in_order

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys, time
from flows.stopping import stops_in_order
try:
    with stops_in_order("Stopped; nothing is kept."):
        try:
            print("ready", flush=True)
            time.sleep(60)
        finally:
            time.sleep(0.5)
            print("ended in order", flush=True)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("numbers", "code", "said"),
    [
        ((signal.SIGINT, signal.SIGINT), 130, ["interrupted"]),
        ((signal.SIGINT, signal.SIGTERM), 130, ["interrupted"]),
        ((signal.SIGTERM, signal.SIGINT), 143, []),
    ],
)
def test_a_second_signal_does_not_disturb_the_end(
    numbers: tuple[signal.Signals, ...], code: int, said: list[str]
):
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    for number in numbers:
        child.send_signal(number)
        time.sleep(0.1)
    out, error = child.communicate()
    assert out.splitlines() == ["ended in order", "Stopped; nothing is kept.", *said]
    assert (child.returncode, error) == (code, "")


def test_what_was_said_of_the_run_is_not_said_again(capsys: pytest.CaptureFixture[str]):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), stops_in_order("not said"):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        except Stopped as stopped:
            assert str(stopped) == "stopped by Ctrl-C"
            stopped.said = True
            raise
    assert "not said" not in capsys.readouterr().out
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_end_that_hangs_can_be_cut_short(monkeypatch: pytest.MonkeyPatch):
    ended: list[int] = []
    monkeypatch.setattr(stopping, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(stopping.os, "_exit", ended.append)
    with pytest.raises(SystemExit), stops_in_order("Stopped."):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)
    assert ended == [143]
