"""Whole runs under a virtual clock, decided by the objects that decide a live run. Pure."""
