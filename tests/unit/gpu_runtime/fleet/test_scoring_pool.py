"""The pool of scorers: who is judged first, and what becomes of images whose scorers die."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.diffusion.samples import GeneratedImage
from gpu_runtime.fleet import scoring_pool
from gpu_runtime.fleet.scoring_pool import ScoringPool
from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.scheduling.scores import Score
from gpu_runtime.worker.scoring_worker import ScoringWorker
from storage.errors import RuntimeFailure, WorkerLostError
from tests.fake_cluster import FakeCluster
from tests.fake_drafters import FakePool, fake_prompts
from tests.scripted import Script
from tests.tiny_run import request, tiny_config

PROMPTS = fake_prompts(3)


def images(count: int, kind: RequestKind = RequestKind.ROLLOUT, prompt: int = 0) -> list[GeneratedImage]:
    """Pixels are the prompt and the seed, as the scorers of this file read them."""
    return [
        GeneratedImage(request(prompt, seed, kind), np.array([[[prompt, seed, 0]]], np.uint8))
        for seed in range(count)
    ]


def by_seed(prompt: int, seed: int) -> Score:
    return Score(seed / 100, False, "")


def pool_of(count: int, script: Script) -> FakePool:
    return FakePool(count, script, by_seed)


def sizes(script: Script) -> list[int]:
    """Images of each call under way."""
    return [len(judge()) for ((_, judge),) in script.under_way.values()]


def finish(script: Script) -> None:
    while script.under_way:
        script.end(next(iter(script.under_way)))


def test_scores_come_in_the_order_of_the_images():
    script = Script()
    pool = pool_of(2, script)
    scores = pool.judge(images(5), PROMPTS) + pool.judge(images(3, prompt=1), PROMPTS)
    while script.under_way:
        script.end([*script.under_way][-1])
    assert [score.value for score in pool.wait_for(scores)] == [seed / 100 for seed in (*range(5), *range(3))]


def test_what_waits_is_divided_among_the_scorers_that_are_free():
    script = Script()
    pool = pool_of(3, script)
    pool.judge(images(8), PROMPTS)
    assert sizes(script) == [3, 3, 2]
    pool.judge(images(40, prompt=1), PROMPTS)
    script.end("scorer-0")
    assert sizes(script) == [3, 2, 16]  # a call has so many at most


def test_a_call_has_no_more_frames_than_images_where_they_are_judged_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
):
    def calls(count: int, by_frame: bool, **reward: Any) -> list[int]:
        """Clips of each call."""
        found: list[int] = []

        def answer(call: Future[Any], pictures: list[np.ndarray], *_: Any) -> None:
            found.append(len(pictures))
            call.set_result([Score(0.5, False, "")] * len(pictures))

        monkeypatch.setattr(Answering, "by_frame", by_frame)
        pool, _ = live_pool(answer, reward=reward)
        clips = [GeneratedImage(one.request, np.stack([one.image_HWC] * count)) for one in images(8)]
        pool.wait_for(pool.judge(clips, PROMPTS))
        pool.close()
        return found

    assert calls(17, by_frame=True) == [1] * 8
    assert calls(17, by_frame=False) == [4, 4]
    assert calls(5, by_frame=True) == [3, 3, 2]
    assert calls(17, by_frame=True, frames="first,middle,last") == [4, 4]


def test_rollouts_are_judged_before_drafts_and_drafts_in_smaller_calls():
    script = Script()
    pool = pool_of(1, script)
    drafts = pool.judge(images(20, RequestKind.EXPLORE), PROMPTS)
    rollouts = pool.judge(images(20, prompt=1), PROMPTS)
    assert sizes(script) == [8]
    order: list[int] = []
    while script.under_way:
        order += sizes(script)
        script.end("scorer-0")
    assert order == [8, 16, 4, 8, 4]
    assert all(score.done() for score in drafts + rollouts)


def test_a_draft_that_is_not_wanted_any_more_takes_no_scorer_s_time():
    script = Script()
    pool = pool_of(1, script)
    drafts = pool.judge(images(20, RequestKind.EXPLORE), PROMPTS)
    assert [score.cancel() for score in drafts] == [False] * 8 + [True] * 12
    script.end("scorer-0")
    assert not script.under_way and [score.result().value for score in drafts[:8]]
    (score,) = pool.judge(images(1), PROMPTS)
    finish(script)
    assert score.done()


@pytest.mark.parametrize(("scorers", "lost"), [(1, 5), (2, 8)])
def test_scorers_that_die_again_and_again_cost_a_draft_its_score_and_end_a_rollout(scorers: int, lost: int):
    script = Script(dying=[f"scorer-{number}" for number in range(10)])
    pool = pool_of(scorers, script)
    (draft,) = pool.judge(images(1, RequestKind.EXPLORE), PROMPTS)
    finish(script)
    assert "is gone" in (draft.result().error or "")
    (rollout,) = pool.judge(images(1), PROMPTS)
    finish(script)
    with pytest.raises(RuntimeFailure, match=f"^{lost} scorer processes were lost"):
        pool.wait_for([rollout])


def test_scorers_that_are_all_lost_with_their_machine_are_replaced():
    script = Script(dying=[f"scorer-{number}" for number in range(6)])
    pool = pool_of(6, script)
    scores = pool.judge(images(12), PROMPTS)
    finish(script)
    assert [score.value for score in pool.wait_for(scores)] == [seed / 100 for seed in range(12)]


def test_an_image_that_kills_its_scorer_is_given_up_although_others_are_judged():
    script = Script()
    pool = pool_of(2, script)
    (deadly,) = pool.judge(images(1), PROMPTS)
    for number in range(4):
        (dies,) = script.under_way
        script.dying.add(dies)
        others = pool.judge([images(9 + number)[-1]], PROMPTS)
        (well,) = script.under_way.keys() - {dies}
        script.end(well)
        assert all(score.done() for score in others)
        script.end(dies)
    with pytest.raises(RuntimeFailure, match="4 scorer processes"):
        deadly.result()


class Answering(RemoteActor[ScoringWorker]):
    """A scorer that answers at once, in the thread that asks; or once it has loaded."""

    by_frame = False

    def __init__(self, name: str, answer: Any, loading: Future[bool] | None) -> None:
        super().__init__(name)
        self.killed = threading.Event()
        self._answer = answer
        self._loading = loading

    def call(self, method: Any, *args: Any, **kwargs: Any) -> Future[Any]:
        """`ready` and `score`."""
        call: Future[Any] = Future()
        if self._loading is not None:
            if method.__name__ == "ready":
                return self._loading
            self._loading.add_done_callback(lambda _: self._answer(call, *args))
        elif method.__name__ == "ready":
            call.set_result(self.by_frame)
        else:
            self._answer(call, *args)
        return call

    def kill(self) -> None:
        """See `RemoteActor`."""
        self.killed.set()


class AnsweringCluster:
    """Starts such scorers; from now on they load until `loading` ends, if it is set."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.loading: Future[bool] | None = None
        self.started: list[Answering] = []

    def start(self, name: str, *args: Any, **options: Any) -> Answering:
        self.started.append(Answering(name, self.answer, self.loading))
        self.reads = options["reads"]
        return self.started[-1]


def live_pool(
    answer: Any, scorers: int = 2, start_timeout_s: float = 300.0, **settings: Any
) -> tuple[ScoringPool, AnsweringCluster]:
    cluster = AnsweringCluster(answer)
    runtime = {"scorer_workers": scorers, "start_timeout_s": start_timeout_s}
    config = tiny_config(runtime=runtime, **settings)
    pool = ScoringPool(cast(Any, cluster), config.runtime, config.reward, config.evaluation)
    pool.await_ready()
    return pool, cluster


def judged(call: Future[Any], pictures: list[np.ndarray], prompts: list[Any], held_out: bool) -> None:
    call.set_result([Score(float(picture[0, 0, 1]) / 100, False, "") for picture in pictures])


def dies_first(then: Any) -> Any:
    """Return an answer: the first call loses its scorer."""
    died: list[bool] = []

    def answer(call: Future[Any], *args: Any) -> None:
        if died:
            then(call, *args)
        else:
            died.append(True)
            call.set_exception(WorkerLostError("gone"))

    return answer


def test_no_image_waits_for_a_replacement_that_loads_while_another_scorer_is_free():
    pool, cluster = live_pool(dies_first(judged))
    cluster.loading = Future()
    scores = pool.judge(images(8), PROMPTS)
    assert [score.result(timeout=10).value for score in scores] == [seed / 100 for seed in range(8)]
    assert len(cluster.started) == 3
    others = pool.judge(images(1), PROMPTS)
    assert [score.result(timeout=10).value for score in others] == [0.0]
    cluster.loading.set_result(False)
    pool.close()


def test_a_replacement_that_does_not_load_in_time_is_killed():
    pool, cluster = live_pool(dies_first(judged), start_timeout_s=1.0)
    cluster.loading = Future()
    pool.wait_for(pool.judge(images(1), PROMPTS))
    assert cluster.started[2].killed.wait(60)
    pool.close()


def test_a_scorer_reads_the_folders_that_its_options_and_the_judges_name(tmp_path: Path):
    clip, judge = (tmp_path / name for name in ("clip", "judge"))
    for folder in (clip, judge):
        folder.mkdir()
    parts = {"ocr": 1.0, "pick-score": {"weight": 1.0, "model": "a/name-of-the-hub", "processor": str(clip)}}
    pool, cluster = live_pool(
        judged,
        reward={"scorer": "sum", "options": {"parts": parts}},
        evaluation={"judge": "clip-score", "options": {"clip": str(judge)}},
    )
    pool.close()
    assert cluster.reads == [str(clip), str(judge)]
    pool, cluster = live_pool(judged)
    pool.close()
    assert cluster.reads == []


def test_the_limit_of_a_call_begins_when_the_scorer_has_loaded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scoring_pool, "CALL_LIMIT_S", 0.05)
    pool, cluster = live_pool(dies_first(lambda *_: None), scorers=1)
    loading = cluster.loading = Future()
    pool.judge(images(1), PROMPTS)
    while len(cluster.started) < 2:
        threading.Event().wait(0.01)
    scorer = cluster.started[1]
    assert not scorer.killed.wait(0.3)
    loading.set_result(False)
    assert scorer.killed.wait(60)
    assert pool._hung[scorer.name] == 0.05
    pool.close()


def test_a_limit_that_runs_out_as_its_call_ends_spares_the_scorer(monkeypatch: pytest.MonkeyPatch):
    limits: list[Callable[[], None]] = []

    class Timer:
        """Has gone off when it is to be cancelled."""

        def __init__(self, _limit_s: float, function: Callable[[], None]) -> None:
            limits.append(function)

        def start(self) -> None: ...

        def cancel(self) -> None: ...

    monkeypatch.setattr(scoring_pool.threading, "Timer", Timer)
    pool, cluster = live_pool(judged, scorers=1)
    pool.wait_for(pool.judge(images(1), PROMPTS))
    (limit,) = limits
    limit()
    assert not cluster.started[0].killed.is_set() and not pool._hung
    pool.close()


def test_threads_share_a_pool():
    pool, cluster = live_pool(judged)
    found: dict[int, list[float]] = {}

    def judge(number: int) -> None:
        for _ in range(20):
            scores = pool.wait_for(pool.judge(images(7, prompt=number), PROMPTS))
            found.setdefault(number, []).extend(score.value for score in scores)

    threads = [threading.Thread(target=judge, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    pool.close()
    assert found == {number: [seed / 100 for seed in range(7)] * 20 for number in range(3)}
    assert all(actor.killed.is_set() for actor in cluster.started)


def test_closing_the_pool_raises_where_scores_are_awaited():
    pool, _ = live_pool(lambda call, *_: None)  # never answers
    waiting = pool.judge(images(5), PROMPTS)
    pool.close()
    for score in (*waiting, *pool.judge(images(1), PROMPTS)):
        with pytest.raises(RuntimeFailure, match="have been closed"):
            score.result(timeout=60)


def test_a_scorer_that_cannot_be_replaced_raises_where_scores_are_awaited():
    def die(call: Future[Any], *_: Any) -> None:
        cluster.start = refuse  # type: ignore[method-assign]
        call.set_exception(WorkerLostError("gone"))

    def refuse(*_: Any, **__: Any) -> Answering:
        raise RuntimeFailure("no process is to be had")

    pool, cluster = live_pool(die)
    (score,) = pool.judge(images(1), PROMPTS)
    with pytest.raises(RuntimeFailure, match="no process is to be had"):
        score.result(timeout=60)
    pool.close()


def test_all_scorers_have_one_limit_together_to_load(monkeypatch: pytest.MonkeyPatch):
    config = tiny_config(runtime={"scorer_workers": 2})
    pool = ScoringPool(FakeCluster(), config.runtime, config.reward, config.evaluation)
    waited: list[float] = []
    loading: Any = SimpleNamespace(result=lambda timeout: waited.append(timeout), done=lambda: True)
    pool._loaded = {actor.name: loading for actor in pool.actors}
    readings = iter([0.0, 10.0, 25.0])
    monkeypatch.setattr(scoring_pool, "time", SimpleNamespace(monotonic=lambda: next(readings)))
    pool.await_ready()
    pool.close()
    limit = config.runtime.start_timeout_s
    assert waited == [limit - 10.0, limit - 25.0]
