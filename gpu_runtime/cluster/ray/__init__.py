"""Ray actors; nothing else imports Ray. Its environment is set here, before the import."""

import os
import secrets
from pathlib import Path

# Without it, Ray hides GPUs from actors that request none, each with a warning.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

RAY_TOKEN = Path.home() / ".ray" / "auth_token"
"""The file with an account's Ray token, by which a cluster recognises its clients."""

_TOKEN_NAMES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
if any(name in os.environ for name in _TOKEN_NAMES) or RAY_TOKEN.exists():
    # `ray start` asks every client for its account's token, but a client that is given an address
    # presents it only when this variable is set.
    os.environ.setdefault("RAY_AUTH_MODE", "token")


def provide_token() -> None:
    """Make a token for this process's cluster alone if Ray could not store one, as in a container."""
    if RAY_TOKEN.exists() or any(name in os.environ for name in _TOKEN_NAMES):
        return
    try:
        RAY_TOKEN.parent.mkdir(parents=True, exist_ok=True)
        kept = os.access(RAY_TOKEN.parent, os.W_OK | os.X_OK)
    except OSError:
        kept = False
    if not kept:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
