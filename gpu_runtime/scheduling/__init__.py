"""Requests, leases and commits as pure state machines: time is an argument."""
