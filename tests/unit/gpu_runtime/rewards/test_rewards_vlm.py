"""The scorer `vlm` against the sample server, and against servers that fail as servers do."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_runtime.learning.advantages import training_samples
from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.options import VLM_TEMPLATE, VlmOptions
from gpu_runtime.rewards.registry import ChosenScorer, chosen_judge, chosen_scorer
from gpu_runtime.rewards.scorers.vlm import VlmScorer, refuse_silent_vlm
from gpu_runtime.scheduling.scores import Score
from storage.config.loading import load_config
from storage.config.run_config import RewardConfig, RunConfig
from storage.errors import ConfigurationError, RewardError
from storage.prompts.files import PromptRecord
from storage.prompts.sources import as_data_uri, read_source
from tasks.checks import judges
from tasks.checks.judges import ask_judges
from tests.judge_servers import Answer, Judge, says
from tests.tiny_run import TinyRun, request, tiny_config

ROOT = Path(__file__).resolve().parents[4]
IMAGES = [np.full((4, 6, 3), 10 * level, np.uint8) for level in range(6)]
PROMPTS = [PromptRecord(place, f"a {{sign}} {place}") for place in range(6)]
KEY = "sk-very-secret-1234"


def judge_of(config: RunConfig) -> ChosenScorer | None:
    return chosen_judge(config.reward, config.evaluation)


def completion(text: Any, reason: str = "stop", tokens: Any = None) -> dict[str, Any]:
    choice: dict[str, Any] = {"message": {"content": text}, "finish_reason": reason}
    return {"choices": [choice | ({"logprobs": {"content": tokens}} if tokens is not None else {})]}


def by_prompt(body: dict[str, Any]) -> tuple[int, bytes]:
    """The right answer: the last digit of the question's first line."""
    question = body["messages"][0]["content"][-1]["text"]
    return 200, json.dumps(completion(question.splitlines()[0][-1])).encode()


@pytest.fixture
def judge() -> Iterator[Judge]:
    judge = Judge(by_prompt)
    yield judge
    judge.close()


def options(url: str, **settings: Any) -> VlmOptions:
    asked = {} if settings.keys().isdisjoint({"parser", "lowest", "highest"}) else {"template": "?"}
    return VlmOptions.model_validate({"url": url, "model": "m", "timeout_s": 20.0} | asked | settings)


def scorer(judge: Any, waits: list[float] | None = None, **settings: Any) -> VlmScorer:
    wait = (waits if waits is not None else []).append
    return VlmScorer(options(judge.url, **settings), wait, {"JUDGE_KEY": KEY})


def test_a_request_is_a_chat_completion_about_one_image(judge: Judge):
    asked = scorer(judge, queue=2, request={"seed": 7, "temperature": 0.5}, key_variable="JUDGE_KEY")
    scores = score_each(asked, IMAGES, PROMPTS)
    assert [score.value for score in scores] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert [score.detail for score in scores] == list("012345")
    assert judge.most_active <= 2
    assert judge.paths == {"/v1/chat/completions"}
    assert judge.keys == {f"Bearer {KEY}"}
    body = next(one for one in judge.bodies if "{sign} 3" in json.dumps(one))
    picture, question = body.pop("messages")[0]["content"]
    assert question == {"type": "text", "text": VLM_TEMPLATE.replace("{prompt}", "a {sign} 3")}
    assert picture["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert body == {"model": "m", "max_tokens": 64, "temperature": 0.5, "seed": 7}


def test_of_an_edit_the_source_comes_before_the_image(judge: Judge):
    source = as_data_uri(np.full((4, 6, 3), 99, np.uint8))
    (score,) = score_each(scorer(judge), IMAGES[:1], [PromptRecord(0, "make it 0", source=source)])
    assert score.value == 0 and score.error is None
    first, second, _ = judge.bodies[0]["messages"][0]["content"]
    pictures = [part["image_url"]["url"] for part in (first, second)]
    assert [read_source(picture)[0, 0, 0] for picture in pictures] == [99, 0]


LOGPROBS = [
    {"token": "\n", "logprob": 0.0, "top_logprobs": []},
    {
        "token": " Yes", "logprob": math.log(0.6),
        "top_logprobs": [
            {"token": " Yes", "logprob": math.log(0.6)}, {"token": "No", "logprob": math.log(0.15)},
            {"token": "no.", "logprob": math.log(0.05)}, {"token": "Maybe", "logprob": math.log(0.2)},
        ],
    },
]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "body", "value", "exact"),
    [
        ({}, completion("8"), 0.8, False),
        ({}, completion(" 8.5/10.\n"), 0.85, False),
        ({}, completion("Score: 10 out of 10"), 1.0, True),
        ({"exact_at": 0.7}, completion("**7**"), 0.7, True),
        ({"lowest": 1.0, "highest": 5.0}, completion("Final Score: 4"), 0.75, False),
        ({"lowest": -5.0, "highest": 15.0}, completion("-2.5"), 0.125, False),
        ({"pattern": r"Overall: ([\d.]+)"}, completion("Style: 3\nOverall: 6"), 0.6, False),
        ({"parser": "json"}, completion('{"score": 9}'), 0.9, False),
        ({"parser": "json", "field": "a.b"}, completion('Here:\n```json\n{"a": {"b": 2}}\n```'), 0.2, False),
        ({"parser": "yes-no"}, completion("Yes", "length", LOGPROBS), 0.6 / 0.8, True),
        ({"parser": "yes-no"}, completion("Yes, it does."), 1.0, True),
        ({"parser": "yes-no"}, completion("no"), 0.0, False),
    ],
)
def test_how_answers_are_read(
    judge: Judge, settings: dict[str, Any], body: dict[str, Any], value: float, exact: bool
):
    judge.faults = [says(200, body)]
    score = scorer(judge, **settings).score(IMAGES[0], PROMPTS[0])
    assert (score.value, score.exact, score.error) == (pytest.approx(value), exact, None)


BAD_LOGPROB = [{"token": "yes", "logprob": 3.0}]
FAULTS: list[tuple[dict[str, Any], Answer, str]] = [
    ({}, says(503, b"busy"), "status 503: 'busy'"),
    ({}, says(500, b""), "status 500"),
    ({}, says(429, b"slow down"), "status 429"),
    ({}, says(200, b"<html>"), "not JSON: '<html>'"),
    ({}, says(200, b"[" * 200_000), "not JSON: '[[["),
    ({}, says(200, []), "not a chat completion"),
    ({}, says(200, {"choices": []}), "not a chat completion"),
    ({}, says(200, {"choices": [{"message": 3}]}), "not a chat completion"),
    ({}, says(200, completion(None)), "None as the text"),
    ({}, says(200, completion("I cannot judge this.")), "no numbers in the answer 'I cannot judge this.'"),
    ({}, says(200, completion("7 for the text, 3 for the style")), "2 numbers in the answer"),
    ({}, says(200, completion("1,000")), "no numbers in the answer"),
    ({}, says(200, completion("nan")), "no numbers in the answer"),
    ({}, says(200, completion("11")), "11.0 in the answer, which is not from 0 to 10"),
    ({}, says(200, completion("-1")), "-1.0 in the answer, which is not from 0 to 10"),
    (
        {},
        says(200, completion("1", "length")),
        "an incomplete answer, as it is longer than reward.options.tokens",
    ),
    ({}, says(200, completion("1", "content_filter")), "an incomplete answer, as its server filtered it"),
    ({"pattern": "is (.*)"}, says(200, completion("it is good")), "'good', not a number"),
    ({"parser": "json"}, says(200, completion("8")), "no 'score' in the answer '8'"),
    ({"parser": "json"}, says(200, completion('{"score": true}')), "True, not a number, as 'score'"),
    ({"parser": "json"}, says(200, completion('{"score": NaN}')), "nan in the answer, which is not from"),
    ({"parser": "json"}, says(200, completion('{"score": 1e999}')), "inf in the answer, which is not from"),
    ({"parser": "json"}, says(200, completion('{"score": 8')), "no JSON object in the answer"),
    ({"parser": "yes-no"}, says(200, completion("perhaps")), "neither yes nor no as the first word"),
    ({"parser": "yes-no"}, says(200, completion("")), "neither yes nor no as the first word"),
    ({"parser": "yes-no"}, says(200, completion("x", tokens=[{"token": "x"}])), "neither yes nor no among"),
    ({"parser": "yes-no"}, says(200, completion("yes", tokens=[{"token": "yes"}])), "malformed"),
    ({"parser": "yes-no"}, says(200, completion("yes", tokens=7)), "malformed log-probabilities"),
    ({"parser": "yes-no"}, says(200, completion("yes", tokens=BAD_LOGPROB)), "which is above 0"),
]


@pytest.mark.parametrize(("settings", "fault", "trouble"), FAULTS)
def test_a_fault_costs_attempts_then_one_image_and_is_never_a_score_of_0(
    judge: Judge, settings: dict[str, Any], fault: Answer, trouble: str
):
    judge.faults, waits = [fault] * 3, []
    asked = scorer(judge, waits, attempts=3, queue=1, usd_per_image=0.25, **settings)
    right = {"json": '{"score": 5}', "yes-no": "yes"}.get(settings.get("parser", ""), "is 5")
    judge.right = says(200, completion(right))
    first, second = score_each(asked, IMAGES[:2], PROMPTS[:2])
    assert first.error is not None
    assert "failed 3 times, the last with " in first.error
    assert trouble in first.error
    assert len(first.error) < 500
    assert (second.error, second.value > 0) == (None, True)
    assert waits == [0.5, 1.0]
    answered = 3 if fault({})[0] == 200 else 0
    assert (first.usd, second.usd) == (0.25 * answered, 0.25)


def test_a_slow_answer_within_the_limit_is_a_score(judge: Judge):
    def slow(body: dict[str, Any]) -> tuple[int, bytes]:
        time.sleep(0.4)
        return by_prompt(body)

    judge.faults = [slow]
    assert scorer(judge, attempts=1).score(IMAGES[4], PROMPTS[4]).value == pytest.approx(0.4)


def test_one_image_costs_its_prompt_group_and_nothing_else(judge: Judge):
    """Groups stay whole or are dropped: what training sees is what it would see without the group."""
    run = TinyRun(tiny_config())
    samples = run.sampler.generate([request(prompt, seed) for prompt in range(3) for seed in range(2)])
    judge.faults = [says(200, completion("???"))]
    scores = score_each(scorer(judge, attempts=1, queue=1), IMAGES, PROMPTS)
    assert [score.error is None for score in scores] == [False] + [True] * 5
    advantages, kept = training_samples(samples, scores, run.config.algorithm, "graded")
    assert [(sample.request.prompt_id, sample.request.seed_index) for sample in kept] == [
        (1, 0), (1, 1), (2, 0), (2, 1),
    ]  # fmt: skip
    assert (advantages.failed, advantages.dropped) == (1, 0)


def test_the_key_is_in_no_message_and_in_no_settings(judge: Judge):
    judge.faults = [says(401, f"Incorrect API key provided: {KEY}".encode())]
    asked = scorer(judge, key_variable="JUDGE_KEY")
    with pytest.raises(RewardError, match=r"provided: \[key\]") as refused:
        asked.score(IMAGES[0], PROMPTS[0])
    assert KEY not in str(refused.value)
    judge.faults = [says(200, completion(f"{KEY} 3"))]
    assert KEY not in asked.score(IMAGES[0], PROMPTS[0]).detail
    reward = RewardConfig(scorer="vlm", options={"url": judge.url, "model": "m", "key_variable": "JUDGE_KEY"})
    assert KEY not in json.dumps(chosen_scorer(reward).values)


def test_a_server_that_is_not_there_is_refused_before_a_run():
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    reward = RewardConfig(scorer="vlm", options={"url": url, "model": "m"})
    with pytest.raises(ConfigurationError, match=rf"no server answers at reward\.options\.url = '{url}'"):
        chosen_scorer(reward).check_servers()
    parts = {"jpeg": 1.0, "remote": {"weight": 1.0, "url": url}}
    with pytest.raises(ConfigurationError, match="no server answers at"):
        chosen_scorer(RewardConfig(scorer="sum", options={"parts": parts})).check_servers()


def test_a_message_names_the_section_of_the_judge_or_the_part():
    url = "evaluation.options.url=judge:8000"
    judge = ["evaluation.judge=vlm", url, "evaluation.options.model=m"]
    chosen = judge_of(load_config("glyphs", judge, {}))
    assert chosen is not None
    for refused in (chosen.build, chosen.check_servers):
        with pytest.raises(
            ConfigurationError, match=r"^evaluation\.options\.url = 'judge:8000' is not the address"
        ):
            refused()
    with pytest.raises(ConfigurationError, match=r"^the default evaluation\.options\.template asks"):
        judge_of(load_config("glyphs", [*judge, "evaluation.options.highest=5"], {}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"evaluation.options.url=http://127.0.0.1:{free.getsockname()[1]}/score"
    judge = ["evaluation.judge=remote", url, "evaluation.options.attempts=1"]
    with pytest.raises(ConfigurationError, match=r"or raise evaluation\.options\.attempts"):
        ask_judges(load_config("glyphs", judge, {}))
    part = {"weight": 1.0, "url": "http://a/v1", "model": "m", "template": "{promt}"}
    with pytest.raises(ConfigurationError, match=r"reward\.options\.parts\.vlm\.template has \{promt\}"):
        chosen_scorer(RewardConfig(scorer="sum", options={"parts": {"vlm": part}}))


def test_a_judge_is_asked_about_a_sun_and_about_one_that_moves_in_a_clip(monkeypatch: pytest.MonkeyPatch):
    seen: list[np.ndarray] = []

    def score(scorer: Any, pictures: list[np.ndarray], prompts: list[PromptRecord]) -> list[Score]:
        seen.extend(pictures)
        return [Score(0.5, True, "")]

    monkeypatch.setattr(judges, "score_each", score)
    for preset, frames in (("glyphs", "all"), ("wan2.2-ocr-480", "all"), ("wan2.2-ocr-480", "3")):
        judge = [
            "evaluation.judge=remote",
            "evaluation.options.url=http://a/score",
            f"reward.frames={frames}",
        ]
        said = ask_judges(load_config(preset, judge, {}))
        assert said.startswith("remote at http://a/score gives a test picture of ")
    image_HWC, clip_FHWC, three_FHWC = seen
    sky, ground, sun = [110, 170, 240], [70, 150, 60], [220, 40, 30]
    places = ((127, 0), (128, 0), (64, 128), (64, 159), (64, 160), (33, 128), (32, 128))
    assert [image_HWC[place].tolist() for place in places] == [sky, ground, sun, sun, sky, sun, sky]
    assert (len(clip_FHWC), np.array_equal(three_FHWC, clip_FHWC[[0, 8, 16]])) == (17, True)
    for place, picture_HWC in enumerate(clip_FHWC):
        is_sun_W = np.abs(np.arange(256) - 256 * (place + 1) / 18) < 32
        assert np.array_equal((picture_HWC[64] == sun).all(-1), is_sun_W)


def test_servers_that_one_call_waits_for_in_turn_must_end_together():
    def parts(queue: int) -> RewardConfig:
        """Two servers: 16 images of `vlm` need 16 / queue rounds of 4 * 60 + 3.5 s, those of `remote` one."""
        url = {"weight": 1.0, "url": "http://a/v1"}
        chosen = {"vlm": {**url, "model": "m", "queue": queue}, "remote": {**url, "timeout_s": 250.0}}
        return RewardConfig(scorer="sum", options={"parts": chosen})

    long = r"reward\.options\.parts\.vlm and reward\.options\.parts\.remote may together take 1978 s"
    with pytest.raises(ConfigurationError, match=long):
        chosen_scorer(parts(4))
    assert len(chosen_scorer(parts(8)).judges) == 2


@pytest.fixture(scope="module")
def sample_server() -> Iterator[str]:
    """The address of the example, as a person starts it, with a key."""
    command = [sys.executable, str(ROOT / "examples" / "judge_server.py"), "--port", "0"]
    environment = os.environ | {"JUDGE_KEY": KEY}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


QUESTION = "Does the picture show {prompt}?"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"parser": "json", "template": QUESTION, "request": {"response_format": {"type": "json_object"}}},
        {"parser": "yes-no", "template": QUESTION},
    ],
)
def test_the_sample_server_judges_in_each_form(sample_server: str, more: dict[str, Any]):
    settings = options(sample_server, key_variable="JUDGE_KEY", **more)
    environ = {"JUDGE_KEY": KEY}
    refuse_silent_vlm(settings, environ)
    image = np.full((20, 20, 3), (220, 30, 30), np.uint8)
    image[:, :1] = (40, 70, 210)  # a twentieth
    image[:5, 1] = (40, 170, 60)  # an 80th: a quarter of what is asked for in full
    prompts = [PromptRecord(0, f"a {colour} thing") for colour in ("blue", "green", "yellow")]
    scores = score_each(VlmScorer(settings, environ=environ), [image] * 3, prompts)
    assert [score.value for score in scores] == pytest.approx([1, 0.25, 0], abs=1e-6)
    assert [score.error for score in scores] == [None] * 3
    clip = np.stack([image, np.zeros_like(image)])
    (score,) = score_each(VlmScorer(settings, environ=environ), [clip], prompts[:1])
    assert score.value == pytest.approx(0.5, abs=1e-6), "the mean of its frames"


def test_the_sample_server_refuses_others(sample_server: str):
    with pytest.raises(ConfigurationError, match=r"refuses with status 401: .*a key is needed"):
        refuse_silent_vlm(options(sample_server))
