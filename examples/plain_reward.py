"""Rewards that are plain functions: of a PIL image and its prompt, or of lists of both.

spotlight score examples/plain_reward.py:blue image.png "a blue sign"
spotlight train --preset glyphs --iterations 4 --set reward.scorer=examples/plain_reward.py:blue
"""

import numpy as np


def blue(image, prompt):
    """Return how much more blue than red an image has, from 0 to 1."""
    red, _, blue = np.asarray(image).reshape(-1, 3).mean(axis=0) / 255
    return 0.5 + (blue - red) / 2


def contrast(images, prompts):
    """Standard deviation of all values; `--set reward.options.scale=[0,128]` makes scores of it."""
    return [np.asarray(image).std() for image in images]
