"""Preemption notices: one file a provider, and how one is watched for."""
