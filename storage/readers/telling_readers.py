"""Readers that notify users of a run's end, an alarm or a preemption storm, by webhook or mail.

Addresses and passwords come only from the environment, so no record, log or page holds them.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import smtplib
import socket
import ssl
import time
import urllib.error
import urllib.request
from abc import abstractmethod
from collections.abc import Mapping
from email.message import EmailMessage
from html import escape
from typing import Any
from urllib.parse import urlsplit

from storage.clock import now
from storage.environment import MODELLED
from storage.errors import ConfigurationError
from storage.home import Home
from storage.readers.figures import EVALUATION, figure_name
from storage.readers.protocol import Reader, ReadRun
from storage.record.records import RunStatus
from storage.record.run_folder import RunFolder
from storage.text import is_loopback, one_line, web_address

_log = logging.getLogger(__name__)

WEBHOOK_VARIABLE = "SPOTLIGHT_NOTIFY_WEBHOOK"
MAIL_VARIABLE = "SPOTLIGHT_NOTIFY_MAIL"
SERVER_VARIABLE = "SPOTLIGHT_NOTIFY_MAIL_SERVER"
USER_VARIABLE = "SPOTLIGHT_NOTIFY_MAIL_USER"
PASSWORD_VARIABLE = "SPOTLIGHT_NOTIFY_MAIL_PASSWORD"

_ANNOUNCED = ("hacking", "storm")
"""The kinds of events reported while a run continues."""

_ANSWER_LIMIT_S = 10.0
_LATE_S = 300.0
"""Seconds after which a message gives the time of its event."""

_LONGEST = 2000
_TRY_AGAIN = (408, 429)
"""HTTP's answers below 500 that ask to try again."""

_SUBMISSION, _WITH_TLS = 587, 465


class TellingReader(Reader):
    """A reader that sends a few lines of text about a run."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._run = ReadRun("", {}, {}, 0.0)
        self._failure = self._score = ""

    @abstractmethod
    def send(self, text: str) -> None:
        """Send a text; an OSError if it may be taken later, a ValueError if it was refused."""

    def open(self, run: ReadRun, last: int) -> int | None:
        """Go on after the last thing that was told."""
        self._run = run

    def iteration(self, number: int, figures: Mapping[str, float], at: float) -> None:
        """Tell nothing."""

    def evaluation(
        self, number: int, figures: Mapping[str, float], images: Mapping[str, bytes], at: float
    ) -> None:
        """Keep the score of a separate evaluation."""
        if (score := figures.get(figure_name(f"{EVALUATION}score"))) is not None:
            self._score = f"{score:.3f}"

    def event(self, kind: str, message: str, at: float) -> None:
        """Tell of an alarm or a preemption storm."""
        if kind == "failed":
            self._failure = message
        elif kind in _ANNOUNCED:
            self._tell(f"run {self._run.run_id}: {message}", at)

    def end(self, status: RunStatus, at: float) -> None:
        """Tell how the run ended."""
        run = self._run
        if run.evaluates:
            self._tell(f"evaluation {run.run_id} of {run.evaluates}: score {self._score or 'unknown'}", at)
            return
        folder = RunFolder(self._home.run(run.run_id))
        identity = folder.identity()
        happened = f"was {status}" if status in ("cancelled", "interrupted") else status
        text = f"run {run.run_id} {happened} after iteration {folder.listing().last_iteration or 0}"
        if result := identity["summary"]:
            mark = f" {MODELLED}" * (result.get("prices") == "modelled")
            text += f", ${result['cost_usd']:.2f}{mark}"
            if result.get("score_before") is not None:
                text += f", held-out score {result['score_before']:.3f} -> {result['score_after']:.3f}"
        if reason := identity["error"] or (self._failure if status in ("failed", "interrupted") else ""):
            text += f": {reason}"
        self._tell(text, at)

    def _tell(self, text: str, at: float) -> None:
        late = time.strftime(" (at %Y-%m-%d %H:%M)", time.localtime(at)) if now() - at > _LATE_S else ""
        text = one_line(text)
        text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
        page = f"\n{self._run.page}" if self._run.page else ""
        self.send(f"Spotlight: {text}{late}{page}")


class WebhookReader(TellingReader):
    """Messages to a webhook that takes Slack's JSON, as those of Slack and Mattermost do."""

    label = "Webhook"

    def send(self, text: str) -> None:
        """Post a text; no error of this method contains the address, which is a secret."""
        body = json.dumps({"text": escape(text, quote=False)}).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "spotlight"}
        try:  # not by httpx, which logs the address of each request
            request = urllib.request.Request(os.environ.get(WEBHOOK_VARIABLE, ""), body, headers)
            with urllib.request.build_opener(_NoRedirection).open(request, timeout=_ANSWER_LIMIT_S):
                pass
        except urllib.error.HTTPError as error:
            again = error.code >= 500 or error.code in _TRY_AGAIN
            raise (ConnectionError if again else ValueError)(f"it answered {error.code}") from None
        except urllib.error.URLError as error:
            raise ConnectionError(f"it cannot be reached: {error.reason}") from None
        except OSError as error:
            raise ConnectionError(f"it did not answer: {error}") from None
        except (ValueError, http.client.HTTPException):
            raise ConnectionError(f"it did not answer; is {WEBHOOK_VARIABLE} right?") from None


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: urllib would ask the new address by GET, without the message."""

    def redirect_request(self, *redirection: Any, **named: Any) -> None:
        """Return no request, so that the redirection is an error."""


class MailReader(TellingReader):
    """Messages by mail; the password is sent on an encrypted connection, or within this machine, only."""

    label = "Mail"

    def send(self, text: str) -> None:
        """Send a text as a mail whose subject is its beginning."""
        recipients, user = os.environ.get(MAIL_VARIABLE, ""), os.environ.get(USER_VARIABLE, "")
        message = EmailMessage()
        message["Subject"] = text.partition("\n")[0][:150]
        message["From"] = user if "@" in user else recipients.partition(",")[0]
        message["To"] = recipients
        message.set_content(text)
        try:
            with _mail_server() as server:
                if user:
                    server.login(user, os.environ.get(PASSWORD_VARIABLE, ""))
                if refused := server.send_message(message):  # raising would send to the others twice
                    _log.warning("the mail server refused %d of the addresses", len(refused))
        except smtplib.SMTPRecipientsRefused as error:
            raise _refusal([code for code, _ in error.recipients.values()]) from None
        except smtplib.SMTPResponseException as error:
            raise _refusal([error.smtp_code]) from None
        except smtplib.SMTPNotSupportedError as error:
            raise ValueError(f"its server lacks a feature: {error}") from None


def _refusal(codes: list[int]) -> Exception:
    """Return the error for answers of a mail server; those below 500 ask to try again."""
    return (ValueError if min(codes) >= 500 else ConnectionError)(f"its server answered {codes[0]}")


def _mail_server() -> smtplib.SMTP:
    """Return a connection to the mail server.

    It is encrypted where the server can; on another machine a password needs that.
    """
    host, port = _host_and_port(os.environ.get(SERVER_VARIABLE, ""))
    if port == _WITH_TLS:
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(host, port, timeout=_ANSWER_LIMIT_S, context=context)
    server = smtplib.SMTP(host, port, timeout=_ANSWER_LIMIT_S, local_hostname=socket.gethostname())
    try:
        server.ehlo_or_helo_if_needed()
        has_password = bool(os.environ.get(USER_VARIABLE))
        if not is_loopback(host) and (has_password or server.has_extn("starttls")):
            server.starttls(context=ssl.create_default_context())
    except BaseException:
        server.close()
        raise
    return server


def _host_and_port(address: str) -> tuple[str, int]:
    """Split HOST:PORT (ValueError if it is neither); without a port it is that of mail submission."""
    parts = urlsplit(f"//{address}")
    if not parts.hostname or parts.port == 0 or parts.netloc != address or "@" in address:
        raise ValueError("not HOST:PORT")
    return parts.hostname, parts.port or _SUBMISSION


def check_webhook() -> None:
    """Refuse a webhook without a usable address; its value is not shown."""
    if web_address(os.environ.get(WEBHOOK_VARIABLE, "")) is None:
        raise ConfigurationError(
            f"tracking.to names webhook; set {WEBHOOK_VARIABLE} to its address, as in https://HOST/SECRET"
        )


def check_mail() -> None:
    """Refuse mail without recipients, a server, or a user for the password."""
    recipients = [one.strip() for one in os.environ.get(MAIL_VARIABLE, "").split(",")]
    if not all("@" in one and one.isprintable() for one in recipients):
        raise ConfigurationError(
            f"tracking.to names mail; set {MAIL_VARIABLE} to its recipients, as in ada@example.org"
        )
    try:
        _host_and_port(os.environ.get(SERVER_VARIABLE, ""))
    except ValueError as error:
        raise ConfigurationError(
            f"tracking.to names mail; set {SERVER_VARIABLE} to the server, as in smtp.example.org:587"
        ) from error
    if bool(os.environ.get(USER_VARIABLE)) != bool(os.environ.get(PASSWORD_VARIABLE)):
        raise ConfigurationError(
            f"tracking.to names mail; set both {USER_VARIABLE} and {PASSWORD_VARIABLE}, or neither"
        )
