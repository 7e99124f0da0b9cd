"""The how-to pages do what they say: every command of the usual questions runs, as its page has it.

Commands of `choose-an-objective` and `log-to-wandb` are those of other pages with other settings, which
`test_documents.py` checks; `test_objectives_run.py` and `test_readers_hold_the_same.py` have what they do.
Each test names what stands in for weights, GPU, network and hours; `tests/walked_page.py` runs the rest.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flows.server.local_server import LocalServer
from storage.config.loading import load_config
from storage.home import Home
from storage.pictures import picture_file
from storage.record.run_store import RunStore
from tests.documents import ROOT
from tests.hub_server import TOKEN, hub_server
from tests.local_ray_instances import local_ray_instances
from tests.running_up import free_port
from tests.tiny_judges import save_clip, save_detector
from tests.tiny_pipelines import save_pipeline
from tests.unit.storage.test_telling_readers import Hook, mail_server
from tests.unit.tasks.test_export import finished_run
from tests.walked_page import SMALL, UserFolder, WalkedPage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TINY_SIZE = {"SPOTLIGHT_MODEL__HEIGHT": "16", "SPOTLIGHT_MODEL__WIDTH": "16"}
"""The tiny pipelines' pixels, where the presets have 512."""

INSTALL = {"make install && . .venv/bin/activate": "true"}
"""The tests run in the environment that this makes."""

SD35 = "spotlight train --preset sd3.5-ocr-512"
SLOW_REWARD = """
import time

def dark(image, prompt):
    time.sleep(0.3)
    return 1 - image.convert("L").resize((1, 1)).getpixel((0, 0)) / 255
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Variables that name a Prefect server for all pages but that of servers."""
    server = LocalServer(Home(tmp_path_factory.mktemp("server")).ensure(), first_port=0)
    server.wait_ready()
    yield server.client_environment
    server.stop()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder /models of the pages: the real classes with tiny random weights."""
    folder = tmp_path_factory.mktemp("models")
    save_pipeline("sd3.5", folder / "sd3.5-medium")
    save_pipeline("qwen-image", folder / "Qwen-Image")
    save_pipeline("wan2.2", folder / "wan2.2")
    return folder


@pytest.fixture(scope="module")
def killed(models: Path, server: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder: SD3.5 with a LoRA, killed in the second of three iterations."""
    user = UserFolder(tmp_path_factory.mktemp("killed"), server)
    user.environment |= TINY_SIZE
    (user.folder / "rewards.py").write_text(SLOW_REWARD)
    model = models / "sd3.5-medium"
    settings = f"--set model.path={model} --set iterations=3 --set reward.scorer=rewards.py:dark"
    process = user.until_committed(f"{SD35} {settings} --run-id begun", "begun")
    process.kill()
    process.wait()
    return user.home.path / "runs" / "begun"


def put(run: Path, page: WalkedPage) -> None:
    """A run of an earlier day is in the page's home."""
    shutil.copytree(run, page.home.path / "runs" / run.name)


def last_line(said: str) -> dict[str, Any]:
    """The JSON with which a command ends."""
    return json.loads(said.strip().splitlines()[-1])


def newest(page: WalkedPage) -> dict[str, Any]:
    """The newest run of the page's home, as its folder has it."""
    row = RunStore(page.home).runs()[0]
    return {"run_id": row.run_id, "status": row.status, "iterations": row.last_iteration}


def test_sd35_on_one_gpu_with_my_own_reward(models: Path, server: Mapping[str, str], tmp_path: Path):
    stand_ins = INSTALL | {
        "hf download stabilityai/stable-diffusion-3.5-medium --local-dir": "ls",
        "/models": str(models),
        "iterations=100": "iterations=1",
    }
    with WalkedPage("sd35-own-reward", tmp_path, stand_ins, server) as page:
        Image.new("RGB", (8, 8), (0, 0, 255)).save(tmp_path / "image.png")
        assert "transformer" in page.run("make install")[1]
        page.write("def blue(image", "my_rewards.py")
        score, trained = page.run("spotlight score")
        assert "1.0" in score and last_line(trained)["iterations"] == 2
        assert 0 < last_line(trained)["score_after"] < 1
        assert "exact" not in trained.strip().rpartition("\n")[0], "such a reward calls no image exact"
        page.environment |= TINY_SIZE
        page.run("spotlight doctor")
        [trained] = page.run("spotlight train")
        assert 0 < last_line(trained)["score_before"] < 1


def test_a_video_model_with_a_judge_of_my_own(models: Path, server: Mapping[str, str], tmp_path: Path):
    stand_ins = {
        "hf download Wan-AI/Wan2.2-TI2V-5B-Diffusers --local-dir": "ls", "/models": str(models),
    }  # fmt: skip
    with WalkedPage("clips", tmp_path, stand_ins, server) as page:
        frames = np.zeros((2, 8, 8, 3), np.uint8)
        frames[1] = 255
        (tmp_path / "clip.webp").write_bytes(picture_file(frames))
        page.write("def moves(frames", "my_judge.py")
        for name in ("TRAIN", "EVALUATE"):  # of the preset: words of the moving shapes
            del page.environment[f"SPOTLIGHT_PROMPTS__{name}"]
        score, trained = page.run("spotlight score")
        assert "1.0" in score and last_line(trained)["iterations"] == 2
        page.environment |= TINY_SIZE | {"SPOTLIGHT_MODEL__FRAMES": "5"}
        *_, trained = page.run("hf download")
        assert last_line(trained)["score_after"] is not None
        page.run("spotlight evaluate")
        assert len(list((tmp_path / "my-clips").glob("*/samples/*.webp"))) == 2


def test_go_on_from_an_adapter(killed: Path, models: Path, server: Mapping[str, str], tmp_path: Path):
    runs = iter(["begun"] * 3 + ["a-run"])
    stand_ins = {
        "RUN": lambda: next(runs), "--iterations 200": "--iterations 4", "/models": str(models),
        "iterations=100": "iterations=1", "iterations=20": "iterations=1",
    }  # fmt: skip
    with WalkedPage("go-on-from-an-adapter", tmp_path, stand_ins, server) as page:
        put(killed, page)
        resumed, longer = page.run("spotlight resume")
        assert [last_line(said)["iterations"] for said in (resumed, longer)] == [3, 4]
        page.environment |= TINY_SIZE | {"SPOTLIGHT_REWARD__SCORER": f"{killed.parents[2]}/rewards.py:dark"}
        _, _, trained = page.run("spotlight export")
        assert last_line(trained)["score_before"] == last_line(longer)["score_after"], "the very policy"
        page.python("import torch")
        assert (models / "sd3.5-merged" / "transformer").is_dir()
        for name in TINY_SIZE:
            del page.environment[name]
        finished_run(page.home, load_config("glyphs", [], {}))
        _, trained = page.run("spotlight export")
        assert last_line(trained)["iterations"] == 1


def test_push_to_the_hub_and_load_in_diffusers(
    killed: Path, models: Path, server: Mapping[str, str], tmp_path: Path
):
    evaluated: list[dict[str, Any]] = []
    stand_ins = {
        "/models": str(models), "torch.bfloat16": "torch.float32", '.to("cuda")': "", "RUN": "begun",
        "num_inference_steps=40": "num_inference_steps=2, height=16, width=16",
        "NAME": "my-push", "EVALUATION": lambda: evaluated[0]["evaluation_id"],
    }  # fmt: skip
    with hub_server() as hub, WalkedPage("use-in-diffusers", tmp_path, stand_ins, server) as page:
        put(killed, page)
        page.run("spotlight export RUN --out")
        page.python("import torch")
        assert Image.open(tmp_path / "open.png").size == (16, 16)
        page.environment |= {
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": TOKEN,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
        }
        dry, _ = page.run("spotlight export RUN --push")
        assert last_line(dry)["would_push"] == "my-push"
        assert hub.files == {path.name: path.read_bytes() for path in (tmp_path / "my-push").iterdir()}
        assert "pytorch_lora_weights.safetensors" in hub.files
        page.environment |= TINY_SIZE | {"SPOTLIGHT_REWARD__SCORER": f"{killed.parents[2]}/rewards.py:dark"}
        for said in page.walk("spotlight evaluate"):
            evaluated.append(last_line(said))
        assert "difference" in evaluated[1]


def test_does_exploration_help_on_my_task(server: Mapping[str, str], tmp_path: Path):
    """With few drafts and iterations: the answer is that nothing can be claimed."""
    stand_ins = {"--iterations 32 --seeds 3": "--iterations 1", "RUN,RUN": lambda: ",".join(
        row.run_id for row in RunStore(page.home).runs()
    )}  # fmt: skip
    with WalkedPage("does-exploration-help", tmp_path, stand_ins, server) as page:
        modelled = {name: page.environment.pop(name) for name in SMALL}  # seconds as of the preset
        assert "if it saves more than" in page.run("spotlight what-if")[0]
        page.environment |= modelled | {
            "SPOTLIGHT_EXPLORATION__PROMPTS": "4", "SPOTLIGHT_EXPLORATION__CANDIDATES": "4",
            "SPOTLIGHT_EXPLORATION__DRAFTS": "8", "SPOTLIGHT_EXPLORATION__MONITOR_PROMPTS": "1",
        }  # fmt: skip
        assert last_line(page.run("spotlight evaluate")[0])["images"] == 8
        page.run("spotlight compare-strategies")
        assert len(RunStore(page.home).runs()) == 2
        for name in [name for name in page.environment if name.startswith(("SPOTLIGHT_EX", *SMALL))]:
            del page.environment[name]
        # The preset's own strategy is `off_policy`; the page asks for runs of `stale`.
        page.run("spotlight what-if", {"--curve": "trains on its drafts"})


def test_one_machine_to_a_ray_cluster(models: Path, server: Mapping[str, str], tmp_path: Path):
    """Instances of this machine stand in for the machines on which `ray start` would run."""
    with local_ray_instances(reserved_cpus=4) as ray:
        ray.add("spot")
        stand_ins = INSTALL | {
            "hf download Qwen/Qwen-Image --local-dir": "ls", "/models": str(models),
            "trainer_workers=8": "trainer_workers=1", "trainer_workers=4": "trainer_workers=1",
            "scorer_workers=8": "scorer_workers=1", "RAY_AUTH_TOKEN=…": "UNUSED=1", "HOST:6379": ray.address,
            "ray start --head --port 6379": "true", "ray start --block": "true",
        }  # fmt: skip
        with WalkedPage("ray-cluster", tmp_path, stand_ins, server) as page:
            # OCR looks for text in noise, for half a second an image.
            page.environment |= TINY_SIZE | {"SPOTLIGHT_REWARD__SCORER": "jpeg"}
            page.run("make install")
            page.run("spotlight doctor")
            for name in ("CLUSTER", "RESERVED_WORKERS", "SPOT_WORKERS"):
                del page.environment[f"SPOTLIGHT_RUNTIME__{name}"]
            *_, trained = page.run("export RAY_AUTH_MODE")
            assert last_line(trained)["iterations"] == 1
            assert newest(page)["status"] == "finished"


def test_nightly_geneval(models: Path, server: Mapping[str, str], tmp_path: Path):
    """GenEval's six kinds of prompts stand for all 553, and a tiny detector and CLIP for the judge."""
    evaluated: list[dict[str, Any]] = []
    server_port, ui_port = free_port(), free_port()
    stand_ins = {
        "/models": str(models), "builtin:geneval-evaluate": "six.jsonl", "RUN": "nightly",
        "EVALUATION": lambda: evaluated[0]["evaluation_id"],
        "spotlight up": f"spotlight up --server-port {server_port} --ui-port {ui_port}",
    }  # fmt: skip
    with WalkedPage("nightly-geneval", tmp_path, stand_ins, server) as page:
        six_kinds(tmp_path / "six.jsonl")
        judge = {
            "detector": str(save_detector(tmp_path / "detector")),
            "clip": str(save_clip(tmp_path / "clip")),
        }
        page.environment |= TINY_SIZE | {
            "SPOTLIGHT_PROMPTS__EVALUATE": "six.jsonl", "SPOTLIGHT_PROMPTS__TRAIN": "six.jsonl",
            "SPOTLIGHT_EVALUATION__PROMPTS": "6",
        } | {f"SPOTLIGHT_REWARD__OPTIONS__{name.upper()}": path for name, path in judge.items()}  # fmt: skip
        model = f"--preset qwen-image-geneval-512 --set model.path={models}/Qwen-Image"
        code, out = page.shell(f"spotlight train {model} --run-id nightly")
        assert code == 0, out
        for said in page.walk("spotlight evaluate"):
            evaluated.append(last_line(said))
        assert len(evaluated[1]["by_tag"]) == 6 and "difference" in evaluated[1]
        assert len(list((tmp_path / "geneval-images").rglob("*.png"))) == 24
        of_cron = page.next("0 2 * * *").strip().partition(".venv/bin/")[2]
        assert of_cron in page.walked, "the very command that was run above"
        for name in server:  # `up` starts its own
            del page.environment[name]
        page.serve("spotlight up --schedule", "Ctrl-C ends all three")
        assert '"verdict": "identical"' in page.run("spotlight reproduce")[0]


def test_schedule_cancel_resume(tmp_path: Path):
    """A webhook and a mail server of this machine; Ctrl-C by `spotlight stop`, which the page names."""
    server, ui = free_port(), free_port()
    hook = Hook()
    with mail_server() as mail:
        stand_ins = {
            "spotlight up": f"spotlight up --server-port {server} --ui-port {ui}", "RUN": "my-run",
            "https://hooks.slack.com/services/…": hook.url, "smtp.example.org:587": f"127.0.0.1:{mail.port}",
            "USER=…": "USER=me", "PASSWORD=…": "PASSWORD=secret", "HOST:6379": "127.0.0.1:9",
            "--iterations 60": "--iterations 4",
            "iterations=20": "iterations=3 --set reward.scorer=rewards.py:dark",
        }  # fmt: skip
        with WalkedPage("schedule-cancel-resume", tmp_path, stand_ins, {}) as page:
            (tmp_path / "rewards.py").write_text(SLOW_REWARD)
            page.serve("spotlight up", "Ctrl-C ends all three")
            process = page.begin("spotlight train", "my-run")
            assert page.shell("spotlight stop last")[0] == 0
            assert process.wait(300) == 143, "ended in order by SIGTERM"
            page.run("export SPOTLIGHT_NOTIFY_WEBHOOK")
            assert "finished" in hook.told[-1] and "finished" in mail.taken[-1]
            runs, resumed = page.run("spotlight runs")
            assert "cancelled" in runs and last_line(resumed)["iterations"] == 3
            _, longer = page.run("spotlight resume", {"--ray-address": "127.0.0.1:9"})
            assert last_line(longer)["iterations"] == 4
    hook.close()


def six_kinds(file: Path) -> None:
    """The first row of each of GenEval's six tags."""
    rows = (ROOT / "presets/prompts/geneval-evaluate.jsonl").read_text().splitlines()
    first = {json.loads(row)["tag"]: row for row in reversed(rows)}
    file.write_text("\n".join(first.values()) + "\n")
