"""The serving part of the judges in this folder: the protocol of the scorer `remote`, without Spotlight.

A judge is a file that begins with its dependencies (PEP 723) and ends with `serve(FACTS, load, check)`. Until
`load` is called it needs only the standard library and Pillow, so that `--stub` starts anywhere.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import math
import os
import select
import socket
import sys
import threading
import traceback
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from PIL import Image, ImageStat

HERE = Path(__file__).resolve().parent
"""Folder of the judges, where hpsv3.py would hide the package of that name."""

HUNG = 70
"""Exit code of a judge that took too long over a sample; a run starts it again."""


@dataclass(frozen=True)
class Facts:
    """Description of a judge: printed by `--help`, and the answer to a GET.

    Attributes:
        name: name of the judge.
        licence: licence of its code, and of its weights where that is another.
        weights: names on the Hugging Face hub.
        memory_gb: memory of its weights, in GB, counted from parameters.
        scale: its lowest and highest score; Spotlight refuses a score outside, and maps the others to [0, 1].
        better: end of the scale that is better.
    """

    name: str
    licence: str
    weights: str
    memory_gb: float
    scale: tuple[float, float]
    better: Literal["higher", "lower"] = "higher"


@dataclass(frozen=True)
class Sample:
    """An image or a clip to be judged.

    Attributes:
        frames: RGB pictures; one for an image.
        prompt: its prompt.
        row: row of its prompt file; empty for a file of texts.
        sources: pictures that the prompt asks to edit; empty for none.
    """

    frames: Sequence[Image.Image]
    prompt: str
    row: dict[str, Any]
    sources: Sequence[Image.Image]

    @property
    def image(self) -> Image.Image:
        """The only frame; raises `ValueError` for a clip."""
        if len(self.frames) != 1:
            raise ValueError(f"a clip of {len(self.frames)} frames; this judge sees images: reward.frames=1")
        return self.frames[0]


class ClientLeft(Exception):
    """The client gave up waiting for the answer to its request."""


Judge = Callable[[Sample], float]
"""Returns a sample's score on the judge's scale. May raise anything: that sample then has no score."""


def serve(
    facts: Facts,
    load: Callable[[str], Judge],
    check: Callable[[Sample], object] = lambda sample: sample.image,
    parts: Sequence[str] = ("",),
) -> None:
    """Serve a judge as the command line says, until the process ends.

    Args:
        facts: description of the judge.
        load: function that loads the model; gets the chosen part of the verdict.
        check: function that refuses a sample that cannot be judged, also with `--stub`; may raise anything.
        parts: parts of the verdict that can be chosen as the score, the default first.
    """
    parser = argparse.ArgumentParser(description=str(facts))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8190, help="0 takes a free one")
    parser.add_argument("--scale", type=float, nargs=2, default=facts.scale, metavar=("LOWEST", "HIGHEST"))
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a sample; then it exits")
    parser.add_argument("--stub", action="store_true", help="a stand-in without weights: brightness")
    parser.add_argument("--part", choices=parts, default=parts[0])
    given = parser.parse_args()
    lowest, highest = given.scale
    if not (math.isfinite(lowest) and math.isfinite(highest) and lowest < highest):
        parser.error(
            f"--scale {lowest:g} {highest:g} is not a scale: give the lowest score, then the highest"
        )
    says = {**asdict(facts), "scale": given.scale, "stub": given.stub, "loaded": False}
    busy, judges = threading.Lock(), []

    def loading() -> None:
        sys.path[:] = [path for path in sys.path if Path(path).resolve() != HERE]
        try:
            judges.append(_brightness(lowest, highest) if given.stub else load(given.part))
        except BaseException:  # noqa: BLE001 - without a model it ends, and the log says why
            traceback.print_exc()
            os._exit(1)
        says["loaded"] = True
        print(f"{facts.name} is loaded", flush=True)

    def score(sample: Sample, client: socket.socket) -> float:
        check(sample)
        with busy:  # one at a time, so that no score depends on what else is asked
            if _has_left(client):
                raise ClientLeft
            hung = threading.Timer(given.limit, os._exit, (HUNG,))
            hung.start()
            try:
                return float(judges[0](sample))
            finally:
                hung.cancel()

    loader = threading.Thread(target=loading, daemon=True)
    with ThreadingHTTPServer((given.host, given.port), _handler(says, loader, score)) as server:
        named = f"{facts.name} (stand-in)" if given.stub else facts.name
        print(f"{named} at http://{given.host}:{server.server_port}/score", flush=True)
        loader.start()
        server.serve_forever()


def answer(body: dict[str, Any], says: dict[str, Any], score: Judge) -> dict[str, Any]:
    """Return the answer to a request; a sample that cannot be judged has a null, and the reason.

    Raises:
        ClientLeft: the client gave up waiting; it asks again, so the other samples need no score.
    """
    scores, details = [], []
    name = f"stand-in of {says['name']}" if says["stub"] else says["name"]
    sources = body.get("sources") or [None] * len(body["images"])
    samples = zip(body["images"], body["prompts"], body["metadata"], sources, strict=True)
    for image, prompt, row, source in samples:
        try:
            value = score(Sample(_pictures(image), prompt, row, _pictures(source)))
        except ClientLeft:
            raise
        except Exception as error:  # noqa: BLE001 - of any library; it costs this sample its score
            traceback.print_exc()
            scores.append(None)
            details.append(f"{name}: {type(error).__name__}: {error}")
        else:
            scores.append(value)
            details.append(f"{name}: {value:.4g}")
    return {"scores": scores, "details": details, "scale": says["scale"], "better": says["better"]}


def _brightness(lowest: float, highest: float) -> Judge:
    """Return the stand-in: mean brightness of the frames, black the lowest score and white the highest."""

    def score(sample: Sample) -> float:
        levels = [ImageStat.Stat(frame.convert("L")).mean[0] / 255 for frame in sample.frames]
        return lowest + (highest - lowest) * math.fsum(levels) / len(levels)

    return score


def _pictures(value: str | list[str] | None) -> list[Image.Image]:
    texts = value if isinstance(value, list) else [value] if value else []
    return [Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB") for text in texts]


def _has_left(client: socket.socket) -> bool:
    """Return True if the other end of a connection, which has sent its whole request, was closed."""
    try:
        return bool(select.select([client], [], [], 0)[0]) and not client.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def _handler(
    says: dict[str, Any], loader: threading.Thread, score: Callable[[Sample, socket.socket], float]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, says)

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
            loader.join()  # a request waits for the model, within the client's own limit
            try:
                asked = json.loads(content)
                self._send(200, answer(asked, says, lambda sample: score(sample, self.connection)))
            except (ClientLeft, ConnectionError):
                self.close_connection = True
            except (ValueError, LookupError, TypeError) as error:  # a request of another form
                self._send(400, {"error": f"{type(error).__name__}: {error}"})

        def _send(self, status: int, values: dict[str, Any]) -> None:
            content = json.dumps(values).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def qwen3_vl(name: str) -> tuple[Any, Any, Callable[[Sample, str], Any]]:
    """Return a Qwen3-VL on the GPU, its processor, and a function from a sample and a text to its input."""
    import torch
    from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

    processor = AutoProcessor.from_pretrained(name)
    model = Qwen3VLForConditionalGeneration.from_pretrained(name, dtype=torch.bfloat16, device_map="cuda")

    def asked(sample: Sample, text: str) -> Any:
        content = [{"type": "image", "image": sample.image}, {"type": "text", "text": text}]
        return processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=True, add_generation_prompt=True,
            return_dict=True, return_tensors="pt",
        ).to(model.device)  # fmt: skip

    return model, processor, asked


def add_repository(name: str, commit: str) -> Path:
    """Make a GitHub repository that is no package importable, at one commit; return its folder.

    Args:
        name: owner and name.
        commit: all 40 digits; the files are kept in the cache under it.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "spotlight-judges"
    folder = cache / f"{name.rpartition('/')[2]}-{commit}"
    if not folder.is_dir():
        with urllib.request.urlopen(f"https://codeload.github.com/{name}/zip/{commit}") as archive:
            content = io.BytesIO(archive.read())
        unpacked = cache / f"new-{os.getpid()}"
        zipfile.ZipFile(content).extractall(unpacked)
        (unpacked / folder.name).rename(folder)
        unpacked.rmdir()
    sys.path.insert(0, str(folder))
    return folder
