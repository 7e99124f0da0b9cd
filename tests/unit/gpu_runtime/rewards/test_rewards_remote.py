"""The remote scorer against a local server that fails as servers do."""

from __future__ import annotations

import base64
import gzip
import io
import json
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.options import RemoteOptions
from gpu_runtime.rewards.scorers.remote import RemoteScorer
from storage.errors import RewardError
from storage.prompts.files import PromptRecord
from storage.prompts.sources import as_data_uri, read_source
from tests.judge_servers import OK_HEAD, Answer, Judge, drips, faulty_server, says

IMAGES = [np.full((4, 6, 3), 10 * level, np.uint8) for level in range(6)]
PROMPTS = [PromptRecord(place, f"prompt {place}", {"tag": str(place)}) for place in range(6)]


def by_brightness(body: dict[str, Any]) -> tuple[int, bytes]:
    """The right answer: a score from the pixels that arrived."""
    pixels = [np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for text in body["images"]]
    said = {
        "scores": [float(image[0, 0, 0]) / 100 for image in pixels],
        "exact": [bool(image[0, 0, 0] >= 50) for image in pixels],
        "details": [
            f"{prompt} {row['tag']}" for prompt, row in zip(body["prompts"], body["metadata"], strict=True)
        ],
    }
    return 200, json.dumps(said).encode()


@pytest.fixture
def judge() -> Iterator[Judge]:
    judge = Judge(by_brightness)
    yield judge
    judge.close()


def scorer(judge: Judge, waits: list[float] | None = None, **settings: Any) -> RemoteScorer:
    remote = RemoteOptions.model_validate({"url": judge.url, "timeout_s": 20.0} | settings)
    return RemoteScorer(remote, wait=(waits if waits is not None else []).append)


def test_images_prompts_and_rows_arrive_and_scores_come_back_in_order(judge: Judge):
    scores = score_each(scorer(judge, images_a_request=2, queue=3), IMAGES, PROMPTS)
    assert [score.value for score in scores] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert [score.exact for score in scores] == [False] * 5 + [True]
    assert [score.detail for score in scores] == [f"prompt {place} {place}" for place in range(6)]
    assert judge.requests == 3


def test_of_edits_the_sources_arrive_too(judge: Judge):
    source = as_data_uri(np.full((4, 6, 3), 99, np.uint8))
    prompts = [PromptRecord(0, "make it red", {"tag": "0"}, source=source), PROMPTS[1]]
    both = PromptRecord(2, "put them together", {"tag": "2"}, source=f"{source}\n{source}")
    score_each(scorer(judge), IMAGES[:3], [*prompts, both])
    score_each(scorer(judge), IMAGES[:1], PROMPTS[:1])
    edits, others = judge.bodies
    assert read_source(f"data:image/png;base64,{edits['sources'][0]}")[0, 0, 0] == 99
    assert edits["sources"][1:] == [None, [edits["sources"][0]] * 2]
    assert "sources" not in others


def test_verdicts_and_details_may_be_left_out(judge: Judge):
    judge.faults = [says(200, {"scores": [1]})]
    score = scorer(judge).score(IMAGES[0], PROMPTS[0])
    assert (score.value, score.exact, score.detail) == (1.0, False, "")


FAULTS = [
    (says(503, b"busy"), "status 503: 'busy'"),
    (says(429, b"slow down"), "status 429"),
    (says(200, b"<html>"), "not JSON: '<html>'"),
    (says(200, [0.5]), "not a JSON object"),
    (says(200, {"score": [0.5]}), "no `scores` in the answer for 1 images"),
    (says(200, {"scores": [0.5, 0.5]}), "2 `scores` in the answer for 1 images"),
    (says(200, {"scores": ["high"]}), "'high' among the `scores`"),
    (says(200, {"scores": [True]}), "True among the `scores`"),
    (says(200, {"scores": [0.5], "exact": []}), "0 `exact` in the answer"),
    (says(200, {"scores": [0.5], "scale": [1, 1]}), "scale [1, 1] in the answer; it is [lowest, highest]"),
    (says(200, {"scores": [0.5], "scale": [0, "1"]}), "it is [lowest, highest]"),
    (says(200, {"scores": [0.5], "scale": [0, True]}), "it is [lowest, highest]"),
    (says(200, b'{"scores": [0.5], "scale": [0, Infinity]}'), "it is [lowest, highest]"),
    (says(200, b'{"scores": [0.5], "scale": [0, 1' + b"0" * 400 + b"]}"), "it is [lowest, highest]"),
    (says(200, b'{"scores": [0.5], "scale": [-1.7e308, 1.7e308]}'), "it is [lowest, highest]"),
    (says(200, {"scores": [0.5], "better": "bigger"}), "'bigger' as the better end in the answer"),
    (says(200, b'{"scores": [1' + b"0" * 5000 + b"]}"), "not JSON"),
    (says(200, b"[" * 200_000), "not JSON: '[[["),
    (says(200, b"\xff\xfe\x00garbage"), "not JSON"),
]


def test_a_score_on_a_declared_scale_is_mapped_to_0_and_1(judge: Judge):
    said = {"scores": [-5, 0, 3.0, 15], "scale": [-5, 15], "details": ["", "", "a: 3", ""]}
    judge.faults = [says(200, said), says(200, said | {"better": "lower"})]
    higher = score_each(scorer(judge), IMAGES[:4], PROMPTS[:4])
    lower = score_each(scorer(judge), IMAGES[:4], PROMPTS[:4])
    # By hand: (-5 + 5) / 20, (0 + 5) / 20, (3 + 5) / 20, (15 + 5) / 20.
    assert [score.value for score in higher] == pytest.approx([0, 0.25, 0.4, 1])
    assert [score.value for score in lower] == pytest.approx([1, 0.75, 0.6, 0])
    assert higher[0].detail == "-5 on [-5, 15], higher is better"
    assert lower[2].detail == "a: 3 on [-5, 15], lower is better"


NOT_SCORES = [
    (b"7", "the judge's score 7 is not on its scale [0, 1]"),
    (b"-0.1", "the judge's score -0.1 is not on its scale [0, 1]"),
    (b"NaN", "the judge's score nan is not on its scale [0, 1]"),
    (b"Infinity", "the judge's score inf is not on its scale [0, 1]"),
    (b"1" + b"0" * 400, "is not on its scale [0, 1]"),
    (b"null", "the judge gave no score (why not)"),
]


@pytest.mark.parametrize(("value", "error"), NOT_SCORES)
def test_an_image_whose_score_is_none_or_off_the_scale_alone_has_an_error(
    judge: Judge, value: bytes, error: str
):
    judge.faults = [says(200, b'{"scores": [0.5, %b], "details": ["", "why not"]}' % value)]
    good, bad = score_each(scorer(judge), IMAGES[:2], PROMPTS[:2])
    assert (good.value, good.error) == (0.5, None)
    assert bad.error is not None and error in bad.error and len(bad.error) < 150
    assert judge.requests == 1


@pytest.mark.parametrize(("fault", "trouble"), FAULTS)
def test_a_fault_costs_attempts_and_is_an_error_only_where_it_lasts(
    judge: Judge, fault: Answer, trouble: str
):
    judge.faults, waits = [fault, fault], []
    assert scorer(judge, waits, backoff_s=0.25).score(IMAGES[3], PROMPTS[3]).value == pytest.approx(0.3)
    assert (judge.requests, waits) == (3, [0.25, 0.5])
    judge.faults, waits = [fault] * 9, []
    with pytest.raises(RewardError) as refused:
        scorer(judge, waits, attempts=3).score(IMAGES[0], PROMPTS[0])
    assert "failed 3 times, the last with " in str(refused.value) and trouble in str(refused.value)
    assert (judge.requests, waits) == (6, [0.5, 1.0])


def test_a_server_that_hangs_is_left_after_the_time_out(judge: Judge):
    judge.faults = [judge.hang]
    assert scorer(judge, timeout_s=0.3, attempts=20).score(IMAGES[2], PROMPTS[2]).value == pytest.approx(0.2)
    judge.faults = [judge.hang] * 2
    with pytest.raises(RewardError, match=r"no whole answer within reward\.options\.timeout_s = 0\.05"):
        scorer(judge, timeout_s=0.05, attempts=2).score(IMAGES[2], PROMPTS[2])


def test_a_server_that_is_gone(judge: Judge):
    remote = scorer(judge, attempts=2)
    judge.server.server_close()
    judge.server.shutdown()
    with pytest.raises(RewardError, match="failed 2 times, the last with ConnectError"):
        remote.score(IMAGES[0], PROMPTS[0])


def test_a_judge_of_the_run_that_is_started_again_costs_no_sample(judge: Judge):
    """It takes connections 30 s after it died, far later than four attempts with their pauses end."""
    judge.close()
    address, waits, again = judge.server.server_address, [], []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if sum(waits) == 30:
            again.append(Judge(by_brightness, int(address[1])))

    options = RemoteOptions.model_validate({"url": judge.url, "judge": "python judge.py"})
    remote = RemoteScorer(options, wait)
    try:
        assert remote.score(IMAGES[3], PROMPTS[3]).value == pytest.approx(0.3)
    finally:
        again[0].close()
    assert waits == [1.0] * 30


def test_a_judge_that_is_never_started_again_is_waited_for_once(judge: Judge):
    judge.close()
    waits: list[float] = []
    options = {"url": judge.url, "judge": "python judge.py", "attempts": 2}
    remote = RemoteScorer(RemoteOptions.model_validate(options), waits.append)
    for expected in ([1.0] * 60 + [0.5], [0.5]):
        waits.clear()
        with pytest.raises(RewardError, match="failed 2 times, the last with ConnectError"):
            remote.score(IMAGES[0], PROMPTS[0])
        assert waits == expected


def test_a_request_that_is_wrong_is_not_sent_again(judge: Judge):
    judge.faults = [says(404, b"no such page")] * 3
    with pytest.raises(RewardError, match=r"refuses the request with status 404: 'no such page'"):
        scorer(judge).score(IMAGES[0], PROMPTS[0])
    assert judge.requests == 1


def test_images_whose_request_fails_leave_the_others_alone(judge: Judge):
    judge.faults = [says(400, b"bad picture")]
    scores = score_each(scorer(judge, images_a_request=3, queue=1), IMAGES, PROMPTS)
    assert ["bad picture" in str(score.error) for score in scores] == [True] * 3 + [False] * 3
    assert [score.value for score in scores] == pytest.approx([0, 0, 0, 0.3, 0.4, 0.5])


def test_as_many_requests_as_the_queue_allows_are_under_way(judge: Judge):
    together = threading.Barrier(2)

    def meet(body: dict[str, Any]) -> tuple[int, bytes]:
        together.wait(20)  # breaks, and the answer is no answer, unless two are here at once
        return by_brightness(body)

    judge.faults = [meet] * 6
    scores = score_each(scorer(judge, images_a_request=1, queue=2, attempts=1), IMAGES, PROMPTS)
    assert [score.error for score in scores] == [None] * 6
    assert judge.most_active == 2


def test_waits_grow_to_a_minute_and_no_further(judge: Judge):
    judge.faults, waits = [says(500, b"")] * 12, []
    with pytest.raises(RewardError):
        scorer(judge, waits, attempts=12, backoff_s=1.0).score(IMAGES[0], PROMPTS[0])
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]


def test_garbage_that_lasts_is_cut_to_one_line(judge: Judge):
    judge.faults = [says(200, {"scores": [["x" * 100_000]]})] * 9
    with pytest.raises(RewardError) as refused:
        scorer(judge, attempts=1).score(IMAGES[0], PROMPTS[0])
    assert len(str(refused.value)) < 400


LATE = "no whole answer within"


@pytest.mark.parametrize(
    ("respond", "trouble"),
    [
        # No read waits longer than the limit, so only a limit on the whole exchange ends the first three.
        (drips(OK_HEAD + b"content-length: 100000\r\n\r\n", b" "), LATE),
        (drips(OK_HEAD + b"x-slow: ", b"a"), LATE),
        (drips(b"", b"H"), LATE),
        (lambda connection, ended: None, "Error: "),
        (lambda connection, ended: connection.sendall(OK_HEAD + b"content-length: 100\r\n\r\n{"), "Error: "),
    ],
    ids=["slow body", "slow headers", "slow status", "closes the connection", "closes it within the answer"],
)
def test_a_connection_that_comes_to_nothing_is_left_after_the_time_out(respond: Any, trouble: str):
    with faulty_server(respond) as server:
        remote = RemoteScorer(RemoteOptions(url=server.url, timeout_s=0.3, attempts=2), wait=[].append)
        with pytest.raises(RewardError, match=f"failed 2 times, .*{trouble}"):
            remote.score(IMAGES[0], PROMPTS[0])
        assert server.requests == 2


def test_an_endless_answer_ends_at_the_limit():
    sent = 0

    def endless(connection: socket.socket, ended: threading.Event) -> None:
        nonlocal sent
        connection.sendall(OK_HEAD + b"\r\n")
        while not ended.is_set():
            sent += connection.send(b" " * 65536)

    with faulty_server(endless) as server:
        remote = RemoteScorer(RemoteOptions(url=server.url, timeout_s=60, attempts=1))
        with pytest.raises(RewardError, match="an answer of more than 16 MiB"):
            remote.score(IMAGES[0], PROMPTS[0])
    assert sent < 64 * 2**20  # the limit, and what the kernel's buffers hold


def test_a_compressed_answer_is_not_unpacked():
    bomb = gzip.compress(b" " * 50 * 2**20)

    def respond(connection: socket.socket, ended: threading.Event) -> None:
        head = b"content-encoding: gzip\r\ncontent-length: " + str(len(bomb)).encode()
        connection.sendall(OK_HEAD + head + b"\r\n\r\n" + bomb)

    with faulty_server(respond) as server:
        remote = RemoteScorer(RemoteOptions(url=server.url, attempts=1))
        tracemalloc.start()
        with pytest.raises(RewardError, match="content-encoding 'gzip', though `identity` was asked for"):
            remote.score(IMAGES[0], PROMPTS[0])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 16 * 2**20


def test_a_redirect_is_not_followed():
    def respond(connection: socket.socket, ended: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 307 Again\r\nlocation: /score\r\ncontent-length: 0\r\n\r\n")

    with faulty_server(respond) as server:
        remote = RemoteScorer(RemoteOptions(url=server.url, attempts=3))
        with pytest.raises(RewardError, match="refuses the request with status 307"):
            remote.score(IMAGES[0], PROMPTS[0])
        assert server.requests == 1


def test_an_endless_refusal_is_read_as_far_as_a_message_needs():
    with faulty_server(drips(b"HTTP/1.1 404 No\r\n\r\n", b"no such page " * 1000)) as server:
        remote = RemoteScorer(RemoteOptions(url=server.url, timeout_s=60, attempts=3))
        with pytest.raises(RewardError, match="status 404: 'no such page "):
            remote.score(IMAGES[0], PROMPTS[0])
        assert server.requests == 1
