"""People are told of a run by webhook and mail, through outages, and no secret is kept."""

from __future__ import annotations

import json
import os
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import storage.readers.following
import storage.readers.telling_readers as telling
from storage.config.run_config import RunConfig
from storage.config.tracking import TrackingConfig
from storage.errors import ConfigurationError
from storage.home import DASHBOARD_URL_VARIABLE
from storage.readers.figures import last_moment
from storage.readers.following import Follower, Position, send_evaluation
from storage.readers.protocol import ReadRun
from storage.readers.registry import check_readers
from storage.record.run_folder import RUN_FILE
from storage.record.run_store import RunStore
from tests.read_runs import Followed, begin, commit, followed
from tests.running_up import free_port, wait_until
from tests.tampering import set_run

SECRET = "T0KEN-of-the-webhook"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        telling.WEBHOOK_VARIABLE, telling.MAIL_VARIABLE, telling.SERVER_VARIABLE, telling.USER_VARIABLE,
        telling.PASSWORD_VARIABLE, DASHBOARD_URL_VARIABLE, "http_proxy", "HTTP_PROXY",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(storage.readers.following, "RETRY_S", 0.05)
    monkeypatch.setattr(telling, "_ANSWER_LIMIT_S", 0.5)


class Hook:
    """A webhook: what it was told, and how it answers from now on (0 hangs)."""

    def __init__(self, port: int = 0) -> None:
        self.told: list[str] = []
        self.status = 200
        self.asked = 0
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                hook.asked += 1
                if hook.status == 0:
                    time.sleep(2)
                    return
                if hook.status == 200 and SECRET in self.path:
                    hook.told.append(json.loads(content)["text"])
                self.send_response(hook.status)
                self.send_header("Location", hook.url)
                self.end_headers()

            def do_GET(self) -> None:  # as the pages of Mattermost for any address
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/{SECRET}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    hook = Hook()
    monkeypatch.setenv(telling.WEBHOOK_VARIABLE, hook.url)
    yield hook
    hook.close()


def all_kept(store: RunStore) -> str:
    """The content of every file in the home."""
    files = [path for path in store.home.path.rglob("*") if path.is_file()]
    return "".join(path.read_bytes().decode("latin-1") for path in files)


def test_the_webhook_is_told_of_an_alarm_a_storm_and_the_end(
    store: RunStore, hook: Hook, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(DASHBOARD_URL_VARIABLE, "http://127.0.0.1:8600")
    config = begin(store, "r", os.getpid(), to=["webhook"])
    commit(store, "r", 1)
    store.add_event("r", "worker_lost", "worker spot-0 died")
    store.add_event("r", "storm", "5 spot devices were preempted within 10 minutes")
    store.add_event("r", "hacking", "the score rises: 0.2 -> 0.4")
    summary = {"score_before": 0.25, "score_after": 0.5, "cost_usd": 1.234, "prices": "modelled"}
    store.set_summary("r", summary)
    assert followed(store, "r", config) == []
    assert [text.splitlines()[0] for text in hook.told] == [
        "Spotlight: run r: 5 spot devices were preempted within 10 minutes",
        "Spotlight: run r: the score rises: 0.2 -&gt; 0.4",
        "Spotlight: run r finished after iteration 1, $1.23 (modelled), held-out score 0.250 -&gt; 0.500",
    ]
    assert hook.told[0].splitlines()[1].startswith("http://127.0.0.1:8600")
    assert SECRET not in all_kept(store)


def test_it_tells_why_a_run_failed_or_ended_early(store: RunStore, hook: Hook):
    config = begin(store, "r", os.getpid(), to=["webhook"])
    store.add_event("r", "failed", "TrainingError: the ratio is off")
    assert followed(store, "r", config, "failed") == []
    assert hook.told == ["Spotlight: run r failed after iteration 0: TrainingError: the ratio is off"]
    store.resume_run("r", os.getpid())
    store.set_status("r", "finished", "budget.usd is 5")
    own = Followed(store, "r", config)
    own.readers.finish("finished")
    assert hook.told[1:] == ["Spotlight: run r finished after iteration 0: budget.usd is 5"]


def test_outages_hold_up_no_run_and_nothing_is_lost(store: RunStore, hook: Hook):
    config = begin(store, "r", os.getpid(), to=["webhook"])
    own = Followed(store, "r", config)
    for status, said in ((500, "it answered 500"), (0, "it did not answer"), (429, "it answered 429")):
        hook.status = status
        before = len(own.troubles)
        store.add_event("r", "hacking", f"alarm {status}")
        own.readers.wake()
        wait_until("the outage is told", lambda before=before: len(own.troubles) > before)
        assert said in own.troubles[before] and "the run continues" in own.troubles[before]
        assert hook.told == [] or "alarm" in hook.told[-1]
        hook.status = 200
        wait_until("it answers again", lambda before=before: len(own.troubles) > before + 1)
    store.set_status("r", "finished")
    own.readers.finish("finished")
    assert [text.split(": ")[-1] for text in hook.told[:-1]] == ["alarm 500", "alarm 0", "alarm 429"]
    assert "finished" in hook.told[-1]
    assert SECRET not in all_kept(store)


def test_a_webhook_that_refuses_connections_gets_the_end_with_the_next_run(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
):
    port = free_port()
    monkeypatch.setenv(telling.WEBHOOK_VARIABLE, f"http://127.0.0.1:{port}/services/{SECRET}")
    config = begin(store, "r", os.getpid(), to=["webhook"])
    troubles = followed(store, "r", config, "failed")
    assert "Connection refused" in troubles[0] and "the next run of the home sends them" in troubles[1]
    assert SECRET not in all_kept(store)
    hook = Hook(port)
    assert followed(store, "later", begin(store, "later", os.getpid(), to=["webhook"])) == []
    hook.close()
    assert [text.split()[2] for text in hook.told] == ["later", "r"]


def test_a_run_that_is_cancelled_before_its_first_commit_is_told_by_the_next_one(store: RunStore, hook: Hook):
    own = Followed(store, "r", begin(store, "r", os.getpid(), to=["webhook"]))
    store.add_event("r", "hacking", "an alarm before any commit")
    store.set_status("r", "cancelled")
    own.readers.finish("cancelled")
    time.sleep(0.2)  # a thread that waited for no commit would have sent it
    assert hook.told == []
    assert followed(store, "later", begin(store, "later", os.getpid(), to=["webhook"])) == []
    assert [text.split()[2] for text in hook.told] == ["later", "r:", "r"]


def test_between_commits_a_reader_looks_at_nothing(
    store: RunStore, hook: Hook, monkeypatch: pytest.MonkeyPatch
):
    looks, look = [], Follower.catch_up
    monkeypatch.setattr(Follower, "catch_up", lambda *given: (looks.append(given), look(*given)))
    own = Followed(store, "r", begin(store, "r", os.getpid(), to=["webhook"]))
    for number in (1, 2):
        commit(store, "r", number)
        own.readers.wake()
        wait_until("it has looked", lambda number=number: len(looks) >= number)
        time.sleep(0.2)
        assert len(looks) == number
    own.readers.finish("finished")


def test_a_run_that_lost_all_its_moments_is_read_from_the_first_one_again(store: RunStore):
    store.create_run("r", RunConfig(), {}, 0)
    with store.reading("r") as connection:
        assert last_moment(connection, "r", number=4, at=time.time()) == -1


@pytest.mark.parametrize("status", [404, 301])
def test_a_webhook_that_does_not_exist_is_left_out(store: RunStore, hook: Hook, status: int):
    """One that has moved is no better: what follows a redirection is a request without the message."""
    config = begin(store, "r", os.getpid(), to=["webhook"])
    hook.status = status
    troubles = followed(store, "r", config)
    assert troubles == [
        f"Webhook refused the run's end (ValueError: it answered {status}); the run continues without it"
    ]
    assert hook.asked == 2


def test_of_several_things_that_are_refused_the_first_is_told_and_how_many(store: RunStore, hook: Hook):
    config = begin(store, "r", os.getpid(), to=["webhook"])
    store.add_event("r", "hacking", "an alarm")
    hook.status = 404
    first, last = followed(store, "r", config)
    assert first.startswith("Webhook refused event ")
    assert last.startswith("Webhook refused 2 things, the last was the run's end; ")


def test_what_a_reader_lacks_in_words(store: RunStore):
    begin(store, "r", os.getpid(), to=["webhook"])
    follower = Follower(store, "r", "webhook", TrackingConfig(), pytest.fail)
    assert follower.lacking() == "the run's end"
    for iteration, which in ((1, "iteration 1"), (2, "iterations 1 to 2")):
        commit(store, "r", iteration)
        assert follower.lacking() == f"the figures of {which}, the run's end"
    for moment, lacks in ((3, "the figures of iteration 2, the run's end"), (4, "the run's end")):
        Position(follower.reader.label, moment).write(follower.file)
        follower.read_position()
        assert follower.lacking() == lacks


@pytest.mark.parametrize(("ago_s", "is_told"), [(3500.0, False), (3700.0, True)])
def test_a_run_that_ended_on_another_machine_is_told_an_hour_later(
    store: RunStore, hook: Hook, ago_s: float, is_told: bool
):
    begin(store, "far", os.getpid(), to=["webhook"])
    store.set_status("far", "failed", at=time.time() - ago_s)
    store.folder("far").change(RUN_FILE, lambda run: run | {"host": "elsewhere"})
    assert followed(store, "later", begin(store, "later", os.getpid(), to=["webhook"])) == []
    assert [text.split()[2] for text in hook.told] == ["later", "far"][: 1 + is_told]


def test_a_separate_evaluation_is_told_with_its_score(store: RunStore, hook: Hook):
    run = ReadRun("e-1", {}, {}, 1.0, evaluates="r")
    send_evaluation(
        store.home, TrackingConfig(to=("webhook",)), run, 5, {"evaluation_score": 0.5}, time.time()
    )
    assert hook.told == ["Spotlight: evaluation e-1 of r: score 0.500"]


def test_a_late_message_has_its_time_and_a_long_one_is_cut(store: RunStore, hook: Hook):
    reader = telling.WebhookReader(store.home)
    reader.open(ReadRun("r", {}, {}, 0.0), 0)
    for message, age_s in (("late", 3600.0), ("now", 0.0), ("x" * 5000, 0.0)):
        reader.event("hacking", message, time.time() - age_s)
    at = time.strftime("%Y-%m-%d %H:", time.localtime(time.time() - 3600))
    assert hook.told[0].startswith(f"Spotlight: run r: late (at {at}")
    assert hook.told[1] == "Spotlight: run r: now"
    assert len(hook.told[2]) < 2100 and hook.told[2].endswith("x...")


class MailServer(socketserver.StreamRequestHandler):
    """A mail server of a few words."""

    taken: list[str]
    answer: str
    login: list[str]

    def handle(self) -> None:
        self._say("220 ready")
        while line := self.rfile.readline().decode().strip():
            match line.split()[0].upper():
                case "EHLO":
                    self._say("250-here\r\n250 AUTH PLAIN")
                case "AUTH":
                    self.login.append(line)
                    self._say("235 welcome")
                case "RCPT":
                    self._say(self.answer)
                case "DATA":
                    self._say("354 go on")
                    lines = iter(lambda: self.rfile.readline().decode().rstrip("\r\n"), ".")
                    self.taken.append("\n".join(lines))
                    self._say("250 taken")
                case "QUIT":
                    self._say("221 bye")
                    return
                case _:
                    self._say("250 fine")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@contextmanager
def mail_server(answer: str = "250 fine") -> Iterator[Any]:
    made: Any = type("Server", (MailServer,), {"taken": [], "answer": answer, "login": []})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), made) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        made.port = server.server_address[1]
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


def test_a_mail_tells_of_the_end_and_its_password_is_kept_nowhere(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(telling.MAIL_VARIABLE, "ada@example.org, bob@example.org")
    monkeypatch.setenv(telling.USER_VARIABLE, "runs@example.org")
    monkeypatch.setenv(telling.PASSWORD_VARIABLE, SECRET)
    with mail_server() as server:
        monkeypatch.setenv(telling.SERVER_VARIABLE, f"127.0.0.1:{server.port}")
        check_readers(TrackingConfig(to=("mail",)))
        assert followed(store, "r", begin(store, "r", os.getpid(), to=["mail"])) == []
    [mail] = server.taken
    assert "Subject: Spotlight: run r finished after iteration 0" in mail
    assert "From: runs@example.org" in mail and "To: ada@example.org, bob@example.org" in mail
    assert len(server.login) == 1
    assert SECRET not in all_kept(store)


@pytest.mark.parametrize(
    ("codes", "kind"), [([450, 550], ConnectionError), ([499], ConnectionError), ([550, 500], ValueError)]
)
def test_a_mail_is_tried_again_if_one_of_the_answers_asks_for_it(codes: list[int], kind: type[Exception]):
    assert type(telling._refusal(codes)) is kind


@pytest.mark.parametrize(("answer", "said"), [("550 who?", "refused"), ("450 later", "failed")])
def test_a_mail_server_may_refuse_or_be_away(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, answer: str, said: str
):
    monkeypatch.setenv(telling.MAIL_VARIABLE, "ada@example.org")
    with mail_server(answer) as server:
        monkeypatch.setenv(telling.SERVER_VARIABLE, f"localhost:{server.port}")
        troubles = followed(store, "r", begin(store, "r", os.getpid(), to=["mail"]))
    assert troubles[0].startswith(f"Mail {said}") and f"its server answered {answer[:3]}" in troubles[0]


def test_no_password_goes_to_another_machine_without_encryption(
    monkeypatch: pytest.MonkeyPatch, store: RunStore
):
    monkeypatch.setattr(telling, "is_loopback", lambda host: False)
    monkeypatch.setenv(telling.MAIL_VARIABLE, "ada@example.org")
    monkeypatch.setenv(telling.USER_VARIABLE, "runs")
    monkeypatch.setenv(telling.PASSWORD_VARIABLE, SECRET)
    with mail_server() as server:
        monkeypatch.setenv(telling.SERVER_VARIABLE, f"127.0.0.1:{server.port}")
        with pytest.raises(ValueError, match="STARTTLS extension not supported"):
            telling.MailReader(store.home).send("hello")
        assert server.login == []
        monkeypatch.delenv(telling.USER_VARIABLE)
        telling.MailReader(store.home).send("hello")
    assert "Subject: hello\nFrom: ada@example.org\n" in server.taken[0]
    with pytest.raises(ConnectionRefusedError):
        telling.MailReader(store.home).send("nobody listens there any more")


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        (telling.MAIL_VARIABLE, "ada@example.org, bob", "to its recipients"),
        (telling.MAIL_VARIABLE, "ada\n@example.org", "to its recipients"),
        *((telling.SERVER_VARIABLE, server, "to the server") for server in ("", "h:0", "h:x", "h/x", "me@h")),
        (telling.USER_VARIABLE, "me", "or neither"),
        (telling.PASSWORD_VARIABLE, SECRET, "or neither"),
    ],
)
def test_mail_that_cannot_be_sent_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
):
    monkeypatch.setenv(telling.MAIL_VARIABLE, "ada@example.org,bob@example.org")
    monkeypatch.setenv(telling.SERVER_VARIABLE, "smtp.example.org")
    check_readers(TrackingConfig(to=("mail",)))
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match=says):
        check_readers(TrackingConfig(to=("mail",)))


@pytest.mark.parametrize("address", [f"hooks.example.org/{SECRET}", f"file:///{SECRET}"])
def test_a_refused_address_is_not_shown(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(telling.WEBHOOK_VARIABLE, address)
    with pytest.raises(ConfigurationError, match="as in https://HOST/SECRET") as refused:
        check_readers(TrackingConfig(to=("webhook",)))
    assert SECRET not in str(refused.value)


def test_readers_send_nothing_more_of_a_run_that_was_taken_over(store: RunStore, hook: Hook):
    config = begin(store, "r", os.getpid(), to=["webhook"])
    own = Followed(store, "r", config)
    store.add_event("r", "hacking", "the first driver's")
    own.readers.wake()
    wait_until("an event is told", lambda: bool(hook.told))
    told = list(hook.told)
    taker = RunStore(store.home)
    set_run(store, "r", host="elsewhere")
    taker.take_over(taker.run("r"))
    taker.resume_run("r", os.getpid())
    commit(taker, "r", 1)
    taker.add_event("r", "hacking", "the second driver's")
    own.readers.wake()
    own.readers.finish("failed")
    assert hook.told == told
    assert own.troubles == []
    taker.set_status("r", "finished")
    its = Followed(taker, "r", config)
    its.readers.finish("finished")
    assert any("the second driver's" in text for text in hook.told[len(told) :])
