"""Models that scorers judge with: CLIP, Mask2Former, and loading them with all their weights."""
