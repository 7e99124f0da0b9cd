"""W&B's copy of a run, online or offline in `HOME/wandb/`, resumed under the run's own identifier."""

from __future__ import annotations

import configparser
import glob
import io
import netrc
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from storage.errors import ConfigurationError
from storage.readers.protocol import Reader, ReadRun
from storage.record.records import RunStatus
from storage.text import one_line

if TYPE_CHECKING:
    from wandb import Run

_AXIS = "iteration"
"""The axis of the charts. W&B's own step only increases, and a run may return to a checkpoint."""

_ANSWER_LIMIT_S = 20.0


class WandbReader(Reader):
    """A run in W&B, in the project `spotlight` or that of WANDB_PROJECT; its files are in `wandb/`."""

    label = "W&B"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run: Run | None = None

    def open(self, run: ReadRun, last: int) -> int | None:
        """Make the run with our identifier, or resume it."""
        import wandb

        earlier, self._run = self._run, None
        if earlier is not None:
            earlier.finish()
        # W&B names a run's folder by the second, and would write over that of an earlier life.
        form = f"*run-%Y%m%d_%H%M%S-{glob.escape(run.run_id).replace('%', '%%')}"
        clocks, folder = (time.localtime, time.gmtime), self._folder / "wandb"
        while any(any(folder.glob(time.strftime(form, clock()))) for clock in clocks):
            time.sleep(0.02)
        settings = wandb.Settings(
            console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True,
            init_timeout=_ANSWER_LIMIT_S,
        )  # fmt: skip
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "spotlight", id=run.run_id, name=run.run_id,
            resume="allow", reinit="create_new", dir=str(self._folder), settings=settings,
            config=dict(run.settings), notes=run.page or None, group=run.evaluates or None,
            job_type="evaluate" if run.evaluates else "train",
        )  # fmt: skip
        self._run.define_metric(_AXIS)
        self._run.define_metric("*", step_metric=_AXIS)
        self.page = "" if self._run.offline else self._run.url or ""
        if not self._run.resumed:  # online it is new, perhaps after an earlier part in another project
            return None if self._run.offline else 0
        # A run that continues in another home, which lacks its position.
        there = self._run.summary.get(_AXIS) if last < 0 else None
        return None if there is None else int(there) + 1

    def iteration(self, number: int, figures: Mapping[str, float], at: float) -> None:
        """Log figures with the iteration, which is the axis of all charts."""
        self._opened.log({_AXIS: number, **figures})

    def evaluation(
        self, number: int, figures: Mapping[str, float], images: Mapping[str, bytes], at: float
    ) -> None:
        """Log figures and pictures."""
        import wandb
        from PIL import Image

        pictures = {name: wandb.Image(Image.open(io.BytesIO(png))) for name, png in images.items()}
        self._opened.log({_AXIS: number, **figures, **pictures})

    def end(self, status: RunStatus, at: float) -> None:
        """Upload the rest, and end the run; one that did not finish is marked as failed."""
        self._opened.finish(exit_code=int(status != "finished"))
        self._run = None

    @property
    def _opened(self) -> Run:
        assert self._run is not None, "a reader is opened before it takes anything"
        return self._run


def refuse_without_login() -> None:
    """Refuse to send to W&B without a key: it would ask for one in the middle of the run.

    The check avoids W&B's own service, which starts a process and may not answer.
    """
    found = configparser.ConfigParser(interpolation=None)
    try:
        found.read([
            Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser() / "settings",
            Path(os.environ.get("WANDB_DIR") or ".", "wandb", "settings"),
        ])  # fmt: skip
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"tracking.to names wandb, whose settings cannot be read: {one_line(str(error))}; fix the file "
            "or delete it"
        ) from error

    def setting(name: str, default: str) -> str:
        return os.environ.get(f"WANDB_{name.upper()}") or found.get("default", name, fallback=default)

    if setting("mode", "online") not in ("online", "shared"):
        return
    if setting("api_key", "") or setting("identity_token_file", ""):
        return
    address = setting("base_url", "https://api.wandb.ai")
    try:
        known = netrc.netrc(os.environ.get("NETRC")).authenticators(urlsplit(address).netloc)
    except (OSError, netrc.NetrcParseError):
        known = None
    if known is None:
        raise ConfigurationError(
            f"tracking.to names wandb, and there is no key for {address}; do `wandb login`, set "
            "WANDB_API_KEY, or set WANDB_MODE=offline to keep the copy in the home folder"
        )
