"""Objectives, advantages, the policy and its training step, on one device or divided over several."""
