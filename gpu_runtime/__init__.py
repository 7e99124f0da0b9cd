"""Everything that runs on an accelerator or decides what runs there; `runtime.py` is the one door."""
