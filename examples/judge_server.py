"""A judge behind HTTP for the scorer `vlm`: the protocol in one file, with the standard library's server.

It stands in for a vision language model: it answers OpenAI's chat completions, and scores an image by how
much of it has the colours that the text names. Start it, and train on its scores:

    python examples/judge_server.py --port 8100
    spotlight train --preset shapes --set reward.scorer=vlm --set iterations=2 \
        --set reward.options.url=http://127.0.0.1:8100/v1 --set reward.options.model=colours

With a key in the environment variable JUDGE_KEY it refuses requests without it.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import math
import os
import re
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from PIL import Image

MODEL = "colours"
PALETTE = {
    "red": (220, 30, 30), "orange": (240, 140, 20), "yellow": (235, 220, 40), "green": (40, 170, 60),
    "blue": (40, 70, 210), "purple": (140, 50, 170), "white": (250, 250, 250), "black": (10, 10, 10),
    "grey": (128, 128, 128),
}  # fmt: skip
FULL_SHARE = 0.05
"""Share of the image from which a colour counts in full."""


def opinion(image_HWC: np.ndarray, text: str) -> float:
    """How much of the colours that a text names is in a uint8 RGB image of shape (H, W, 3): in [0, 1]."""
    colours = np.array(list(PALETTE.values()), np.float64)
    distance_HWN = np.linalg.norm(image_HWC[:, :, None, :] - colours, axis=-1)
    nearest_HW = distance_HWN.argmin(-1)
    words = re.findall("[a-z]+", text.lower())
    named = [place for place, name in enumerate(PALETTE) if name in words]
    shares = [min(1.0, float((nearest_HW == place).mean()) / FULL_SHARE) for place in named]
    return sum(shares) / len(shares) if shares else 0.0


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """A chat completion: a number from 0 to 10, JSON, or yes or no with its log-probability, as asked."""
    *pictures, question = request["messages"][-1]["content"]
    opinions = []
    for picture in pictures:  # one, or the frames of a clip
        data = picture["image_url"]["url"].partition("base64,")[2]
        with Image.open(io.BytesIO(base64.b64decode(data))) as image:
            opinions.append(opinion(np.asarray(image.convert("RGB")), question["text"]))
    good = sum(opinions) / len(opinions)
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    if request.get("logprobs"):
        chances = {"yes": math.log(max(good, 1e-9)), "no": math.log(max(1 - good, 1e-9))}
        text = max(chances, key=chances.__getitem__)
        listed = [{"token": word, "logprob": chance} for word, chance in chances.items()]
        token = {"token": text, "logprob": chances[text], "top_logprobs": listed}
        choice["logprobs"] = {"content": [token]}
    elif request.get("response_format", {}).get("type") == "json_object":
        text = json.dumps({"score": round(10 * good, 3)})
    else:
        text = f"{10 * good:.3f}"
    choice["message"] = {"role": "assistant", "content": text}
    return {"object": "chat.completion", "created": int(time.time()), "model": MODEL, "choices": [choice]}


class Judge(BaseHTTPRequestHandler):
    """Two pages: the list of models, and completions."""

    def do_GET(self) -> None:
        """The models that are served."""
        if self._is_allowed():
            known = self.path == "/v1/models"
            self._send(200 if known else 404, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        """An opinion about an image."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not self._is_allowed():
            return
        if self.path != "/v1/chat/completions":
            self._send(404, {"error": {"message": f"no page {self.path}"}})
            return
        try:
            self._send(200, answer(json.loads(body)))
        except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:  # of another form
            self._send(400, {"error": {"message": f"{type(error).__name__}: {error}"}})

    def _is_allowed(self) -> bool:
        key = os.environ.get("JUDGE_KEY")
        if key and self.headers.get("authorization") != f"Bearer {key}":
            self._send(401, {"error": {"message": "a key is needed"}})
            return False
        return True

    def _send(self, status: int, values: dict[str, Any]) -> None:
        content = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not printed."""


def main() -> None:
    """Serve until it is interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=8100, help="0 takes a free one")
    with ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Judge) as server:
        print(f"judging at http://127.0.0.1:{server.server_port}/v1", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
