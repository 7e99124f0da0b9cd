"""Everything that runs on an accelerator or decides what runs there; `runtime.py` is the one door."""

import storage  # noqa: F401 - its environment, before any library that would report its use
