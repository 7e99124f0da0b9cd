"""A server that speaks the calls with which huggingface_hub makes a repository and uploads a folder to it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

TOKEN = "hf_right"


class HubServer(ThreadingHTTPServer):
    """The repositories asked for, and the files of the last commit by their names."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: list[dict[str, Any]] = []
        self.large: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}


class _Handler(BaseHTTPRequestHandler):
    server: HubServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self._answer({"name": "me", "type": "user"} if self.path == "/api/whoami-v2" else None)

    def do_PUT(self) -> None:
        self.server.large[self.path.rpartition("/")[2]] = self._body()
        self._answer({})

    def do_POST(self) -> None:
        body = self._body()
        path = self.path.partition("?")[0]
        if path.endswith("/commit/main"):
            self._commit([json.loads(line) for line in body.splitlines()])
            return
        asked = json.loads(body)
        if path == "/api/repos/create":
            self.server.repositories.append(asked)
            self._answer({"url": f"{self.server.url}/me/{asked['name']}"})
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif path.endswith("/preupload/main"):
            kinds = {file["path"]: "lfs" if file["path"].endswith("safetensors") else "regular"
                     for file in asked["files"]}  # fmt: skip
            self._answer({"files": [
                {"path": name, "uploadMode": kind, "shouldIgnore": False} for name, kind in kinds.items()
            ]})  # fmt: skip
        elif path.endswith("/info/lfs/objects/batch"):
            self._answer({"transfer": "basic", "objects": [
                one | {"actions": {"upload": {"href": f"{self.server.url}/large/{one['oid']}"}}}
                for one in asked["objects"]
            ]})  # fmt: skip
        else:
            self._answer(None)

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.server.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.files[value["path"]] = self.server.large[value["oid"]]
        self._answer({"commitUrl": f"{self.server.url}/me/lora/commit/1", "commitOid": "1" * 40})

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, value: dict[str, Any] | None) -> None:
        right = self.path.startswith("/large/") or self.headers.get("Authorization") == f"Bearer {TOKEN}"
        body = json.dumps(value if right else {"error": "Invalid credentials"}).encode()
        self.send_response(401 if not right else 404 if value is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def hub_server() -> Iterator[HubServer]:
    with HubServer() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
