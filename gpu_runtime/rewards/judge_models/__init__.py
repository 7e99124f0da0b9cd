"""What scorers judge with: CLIP, Mask2Former, loading them with all their weights, and servers."""
