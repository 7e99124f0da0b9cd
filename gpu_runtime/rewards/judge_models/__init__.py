"""Models that scorers judge with (CLIP, Mask2Former), and judge servers."""
