"""kill -9 at any moment of a save leaves a complete checkpoint, never older than the last one promised."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from storage.record.checkpoints import CheckpointStore

KILLS = 24
BLOB_BYTES = 3_000_000

# Every iteration is saved twice, so that replacing a checkpoint is interrupted too.
SAVER = f"""
import sys
from pathlib import Path
from storage.record import checkpoints
from storage.record.checkpoints import CheckpointStore
checkpoints.KEPT = 2
store = CheckpointStore(Path(sys.argv[1]))
iteration = int(sys.argv[2])
print("ready", flush=True)
while True:
    for turn in (0, 1):
        blob = bytes([iteration % 251]) * {BLOB_BYTES}
        store.save(iteration, {{"policy": blob, "optimizer": blob[::-1]}}, {{"iteration": iteration}})
        print(iteration, flush=True)
    iteration += 1
"""


def test_killed_savers_always_leave_a_complete_checkpoint(tmp_path: Path):
    dice = random.Random(0)
    store = CheckpointStore(tmp_path / "run")
    promised = 0
    leftovers = 0
    for _ in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(store.folder), str(promised + 1)],
            stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[2],
        )  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        # After a number of saves, and then somewhere in the next one or two, however slow the machine.
        lines = [child.stdout.readline() for _ in range(dice.randint(0, 3))]
        time.sleep(dice.uniform(0.0, 0.05))
        child.kill()
        lines += child.stdout.readlines()
        child.communicate()
        # The last line may be cut off by the kill: then it was not promised.
        promised = max([promised, *(int(line) for line in lines if line.endswith("\n"))])
        leftovers += any(path.name.startswith(".") for path in store.folder.glob(".*"))
        loaded = store.load_latest()
        if loaded is None:
            assert promised == 0
            continue
        assert promised <= loaded.iteration <= promised + 1
        assert loaded.rejected == []
        assert loaded.state == {"iteration": loaded.iteration}
        assert loaded.blobs["policy"] == bytes([loaded.iteration % 251]) * BLOB_BYTES
        assert len(store.iterations()) <= 3  # two kept, and one that the kill kept from being deleted
    assert promised >= KILLS // 2
    assert leftovers > 0, "no kill fell into a save; the test tests nothing"


def test_loading_beside_a_saver_never_fails(tmp_path: Path):
    store = CheckpointStore(tmp_path / "run")
    child = subprocess.Popen(
        [sys.executable, "-c", SAVER.replace("KEPT = 2", "KEPT = 1"), str(store.folder), "1"],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    try:
        assert child.stdout is not None
        for _ in range(3):
            child.stdout.readline()
        before = 0
        while before < 40:  # however slow the machine
            assert child.poll() is None
            loaded = store.load_latest()
            assert loaded is not None
            assert loaded.iteration >= before
            before = loaded.iteration
    finally:
        child.kill()
        child.communicate()
