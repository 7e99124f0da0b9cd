"""Ray actors; nothing else imports ray. Its environment is set here, before it is imported."""

import os
from pathlib import Path

# Without it Ray hides the GPUs of actors that ask for none, with a warning each.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

RAY_TOKEN = Path.home() / ".ray" / "auth_token"
"""The file in which Ray keeps an account's token, by which a cluster knows its clients."""

_TOKEN_NAMES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
if any(name in os.environ for name in _TOKEN_NAMES) or RAY_TOKEN.exists():
    # `ray start` asks every client for its account's token, but a client that is given an address
    # presents it only when this variable is set.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
