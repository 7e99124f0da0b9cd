"""Prefect in the processes of a home: without the settings that lie in the current folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LOOK = """
import json
from prefect.settings import get_current_settings
print(json.dumps(get_current_settings().to_environment_variables(), sort_keys=True))
"""

RUN = f"""
import contextlib
from pathlib import Path
from types import SimpleNamespace
import flows.server.prefect_server as server
from flows.server.note import ServerNote
from storage.home import Home

class Silent:
    note = ServerNote(0, "127.0.0.1", 9)
    itself = SimpleNamespace(note=note, _password="a:b", _home=Home(Path.home()))
    client_environment = server.LocalServer.client_environment.fget(itself)
    kept_alive = staticmethod(contextlib.nullcontext)
    stop = wait_ready = staticmethod(lambda: None)

server.LocalServer = lambda home: Silent
server.close_flow_runs_of_ended_runs = lambda home: None
with server.prefect_server(Home(Path.home() / "home")):
    exec({LOOK!r})
"""

FILES = {
    "prefect.toml": '[tasks]\ndefault_persist_result = true\n[client.custom_headers]\nsecret = "x"\n',
    ".env": "PREFECT_TASKS_DEFAULT_RETRY_DELAY_SECONDS=99\nPREFECT_RESULTS_PERSIST_BY_DEFAULT=true\n",
    "pyproject.toml": '[tool.prefect.logging]\nlevel = "DEBUG"\n',
}


def printed(command: list[str], folder: Path) -> str:
    """Return what a child in the folder prints; its home and modules lie beside the folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    home = folder.parent
    own = {"HOME": str(home), "PYTHONPATH": str(home), "PREFECT_PROFILES_PATH": str(home / "profiles.toml")}
    answer = subprocess.run(
        command, env=kept | own, cwd=folder, stdout=subprocess.PIPE, text=True, check=True
    )
    return answer.stdout


def test_the_files_of_the_current_folder_do_not_count(tmp_path: Path):
    command = [sys.executable, "-P", "-c", RUN]
    (tmp_path / "look.py").write_text(LOOK)
    empty, full, torn = (tmp_path / name for name in ("empty", "full", "torn"))
    for folder in (empty, full, torn):
        folder.mkdir()
    for name, text in FILES.items():
        (full / name).write_text(text)
    (torn / "prefect.toml").write_text("[torn")
    assert printed(command, full) == printed(command, empty) != ""
    assert printed(command, torn) == printed(command, empty)
    assert printed([sys.executable, "-P", "-m", "look"], full) != printed(command, full)
