"""Objectives, advantages, the policy and its training step, on one or several devices."""
