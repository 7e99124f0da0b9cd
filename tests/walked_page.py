"""A how-to page that is walked through: its blocks in their order, each line as the page has it.

A test says openly what stands in for weights, GPU, network and hours: texts of the page that are replaced
(`stand_ins`), and settings in the environment that make runs small. Everything else is the page's own.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

from storage.home import Home
from tests.documents import ROOT, blocks
from tests.running_up import PATIENCE_S, wait_until

SMALL = {
    "SPOTLIGHT_ITERATIONS": "1", "SPOTLIGHT_RUNTIME__CLUSTER": "local",
    "SPOTLIGHT_RUNTIME__RESERVED_WORKERS": "1", "SPOTLIGHT_RUNTIME__SPOT_WORKERS": "1",
    "SPOTLIGHT_RUNTIME__SCORER_WORKERS": "1",
    "SPOTLIGHT_SAMPLING__ROLLOUT_STEPS": "3", "SPOTLIGHT_SAMPLING__EVALUATE_STEPS": "2",
    "SPOTLIGHT_SAMPLING__WINDOW_SIZE": "2", "SPOTLIGHT_SAMPLING__WINDOW_STOP": "2",
    "SPOTLIGHT_SAMPLING__BATCH_SIZE": "4", "SPOTLIGHT_ALGORITHM__PROMPTS_PER_ITERATION": "2",
    "SPOTLIGHT_ALGORITHM__GROUP_SIZE": "2", "SPOTLIGHT_ALGORITHM__UPDATES_PER_ITERATION": "1",
    "SPOTLIGHT_EVALUATION__PROMPTS": "2", "SPOTLIGHT_PROMPTS__TRAIN": "my-prompts.txt",
    "SPOTLIGHT_PROMPTS__EVALUATE": "my-held-out.txt", "SPOTLIGHT_TRACKING__TO": "[]",
}  # fmt: skip
"""One iteration of four images on local processes, evaluated by two prompts; the page's `--set` wins."""

StandIn = str | Callable[[], str]

PROMPTS = ("SUN", "A1B", "CAT", "7UP")


class UserFolder:
    """A user's folder: two prompt files, the home `.spotlight`, and an environment that makes runs small."""

    def __init__(self, folder: Path, server: Mapping[str, str]) -> None:
        self.folder, self.home = folder, Home(folder / ".spotlight").ensure()
        for file, chosen in (("my-prompts.txt", PROMPTS), ("my-held-out.txt", PROMPTS[:2])):
            lines = [f'a red sign that says "{word}"' for word in chosen]
            (folder / file).write_text("\n".join(lines) + "\n")
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("SPOTLIGHT_", "PREFECT_"))
        }
        own = {"SPOTLIGHT_HOME": str(self.home.path), "PATH": f"{ROOT / '.venv/bin'}:{kept['PATH']}"}
        self.environment = kept | SMALL | own | dict(server)

    def shell(self, line: str) -> tuple[int, str]:
        """Exit code and output of a line in a shell, whose environment the next one has."""
        kept = self.folder / "environment"
        answer = subprocess.run(
            ["bash", "-c", f'{line}\ncode=$?\nenv -0 > "{kept}"\nexit $code'], cwd=self.folder,
            env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        self.environment = dict(one.split("=", 1) for one in kept.read_text().split("\0") if "=" in one)
        return answer.returncode, answer.stdout

    def start(self, line: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a line beside what follows."""
        with log.open("wb") as output:
            return subprocess.Popen(
                ["bash", "-c", f"exec {line}"], cwd=self.folder, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def until_committed(self, line: str, run_id: str) -> subprocess.Popen[bytes]:
        """Start a run, and wait until its first iteration is committed."""
        log = self.folder / f"{run_id}.log"
        process = self.start(line, log)
        committed = self.home.path / "runs" / run_id / "iteration-000001"
        wait_until("the first commit", lambda: committed.exists() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        return process


class WalkedPage(UserFolder):
    """A page of docs/how-to that is walked through in a folder.

    A context that ends what the page has started, and asserts that nothing of the page was left out.
    """

    def __init__(
        self, name: str, folder: Path, stand_ins: Mapping[str, StandIn], server: Mapping[str, str]
    ) -> None:
        super().__init__(folder, server)
        text = (ROOT / f"docs/how-to/{name}.md").read_text(encoding="utf-8")
        self._left, self._stand_ins, self._unused = blocks(text), dict(stand_ins), set(stand_ins)
        self._served: list[subprocess.Popen[bytes]] = []
        self.walked: list[str] = []
        """Lines that were run, as the page has them."""

    def run(self, begins: str, refused: Mapping[str, str] | None = None) -> list[str]:
        """Run the next block; what each line has printed.

        `refused` has a part of each line that cannot run here, and what that has to say.
        """
        return list(self.walk(begins, refused))

    def walk(self, begins: str, refused: Mapping[str, str] | None = None) -> Iterator[str]:
        """Run the next block as `run` does, one line after another."""
        for shown in self.next(begins).splitlines():
            self.walked.append(shown)
            line = self._here(shown)
            reason = next((why for part, why in (refused or {}).items() if part in line), None)
            code, out = self.shell(line)
            assert (code != 0) == (reason is not None), f"{line}\n{out}"
            assert reason is None or reason in out, f"{line}\n{out}"
            yield out

    def begin(self, begins: str, run_id: str) -> subprocess.Popen[bytes]:
        """Start the run of the next block, and wait until its first iteration is committed."""
        return self.until_committed(self._here(self.next(begins)).strip(), run_id)

    def python(self, begins: str) -> str:
        """Run the next block, which is Python; what it has printed."""
        code, out = self.shell(f"python - <<'END'\n{self._here(self.next(begins))}END")
        assert code == 0, out
        return out

    def write(self, begins: str, file: str) -> None:
        """Write the next block into a file."""
        (self.folder / file).write_text(self._here(self.next(begins)))

    def serve(self, begins: str, ready: str) -> None:
        """Run the next block beside what follows, once it has said that it is ready, to the page's end."""
        log = self.folder / f"served-{len(self._served)}.log"
        process = self.start(self._here(self.next(begins)).strip(), log)
        self._served.append(process)
        wait_until(ready, lambda: ready in log.read_text() or process.poll() is not None)
        assert ready in log.read_text(), log.read_text()

    def next(self, begins: str) -> str:
        """The next block, as the page has it."""
        assert self._left and self._left[0].startswith(begins), f"next on the page: {self._left[:1]}"
        return self._left.pop(0)

    def _here(self, text: str) -> str:
        """A text of the page with what stands in for parts of it."""
        for part, stand_in in self._stand_ins.items():
            if part in text:
                text = text.replace(part, stand_in if isinstance(stand_in, str) else stand_in())
                self._unused.discard(part)
        return text

    def __enter__(self) -> WalkedPage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._served:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)
        if kind is None:
            assert self._left == [], "the page has more blocks"
            assert self._unused == set(), "nothing on the page is replaced by these"
