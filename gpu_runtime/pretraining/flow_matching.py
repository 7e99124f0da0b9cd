"""Pre-training of an embedded model, from scratch or from another one: flow matching on the task's drawings.

Training stops on purpose while the model still fails often: reinforcement learning needs room to improve, and
successes to learn from. The `-sparse` weights are saved earlier in the same run, when successes are rare. A
`-guided` model drops some prompts in training, so that it can be sampled with guidance.

Shape suffixes: B samples, S image tokens, C latent channels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import QwenImageTransformer2DModel

from gpu_runtime.embedded_tasks.protocol import EmbeddedTask
from gpu_runtime.embedded_tasks.registry import find_task
from gpu_runtime.models.embedded.folder import EmbeddedSettings
from gpu_runtime.models.embedded.model import EmbeddedModel, stacked_frames, without_prompts
from gpu_runtime.models.embedded.pca_codec import PatchCodec
from storage.errors import ConfigurationError, TrainingError
from storage.prompts.sources import read_source


@dataclass(frozen=True)
class Recipe:
    """Sizes and settings of one model's pre-training; the defaults are measured, see the model cards."""

    training_steps: int
    """Training steps of the main weights."""

    sparse_training_steps: int = 0
    """Training steps after which the `-sparse` weights are saved, below `training_steps`; 0 for never."""

    task: str = ""
    """Embedded task that the model learns; empty for the one named like the recipe."""

    prompt_dropout: float = 0.0
    """Share of pictures trained on without their prompt; above 0 the model supports guidance."""

    start: str = ""
    """Embedded model whose codec and weights training starts from; empty for a new model."""

    components: int = 32
    """Latent channels: principal components kept of an 8x8 patch."""

    whitening: float = 0.5
    """Whitening of `PatchCodec.fit`."""

    layers: int = 3
    heads: int = 4
    head_width: int = 24
    rope_axes: tuple[int, int, int] = (8, 8, 8)
    text_width: int = 128
    batch_size: int = 64
    muon_learning_rate: float = 0.02
    """Learning rate for the matrices of the blocks (torch.optim.Muon)."""

    adamw_learning_rate: float = 1.5e-3
    """Learning rate for all other parameters (AdamW)."""

    sigma_shift: float = 0.0
    """Mean of the logit-normal noise level; above 0, more training is at high noise, which determines the
    layout."""

    warmup_training_steps: int = 20
    average_decay: float = 0.99
    """Decay of the moving average of the weights, which is saved."""

    codec_images: int = 2048
    """Number of pictures that the codec is fitted on."""


RECIPES = {
    "glyphs": Recipe(training_steps=420, sparse_training_steps=366),
    "shapes": Recipe(
        training_steps=520,
        sparse_training_steps=160,
        components=40,
        sigma_shift=1.0,
        muon_learning_rate=0.03,
        adamw_learning_rate=3e-3,
    ),
    "moving-shapes": Recipe(
        training_steps=500,
        components=40,
        head_width=16,
        rope_axes=(4, 6, 6),
        text_width=64,
        sigma_shift=1.0,
        muon_learning_rate=0.03,
        adamw_learning_rate=3e-3,
        codec_images=256,
    ),
    "glyphs-guided": Recipe(training_steps=366, task="glyphs", prompt_dropout=0.1),
    "edits": Recipe(
        training_steps=160,
        start="embedded:shapes",
        components=40,
        sigma_shift=1.0,
    ),
}


@dataclass(frozen=True)
class PretrainReport:
    """The result of `pretrain`.

    Attributes:
        loss_at_start, loss_at_end: mean loss of the first and of the last tenth of the training steps.
        cpu_s: CPU seconds that the process spent in `pretrain`.
        main_folder, sparse_folder: folders of the two sets of weights; None without sparse weights.
    """

    name: str
    seed: int
    parameters: int
    loss_at_start: float
    loss_at_end: float
    cpu_s: float
    main_folder: Path
    sparse_folder: Path | None


class Pretraining:
    """A pre-training in progress; deterministic given the task, the recipe, the seed and one thread.

    Args:
        seed: seed of weights, data and noise.
    """

    def __init__(self, task: EmbeddedTask, recipe: Recipe, seed: int) -> None:
        self.task, self.recipe, self.seed = task, recipe, seed
        self.training_steps_done = 0
        self._data = np.random.default_rng([seed, 0])
        self._noise = torch.Generator().manual_seed(seed)
        self._model = self._untrained_model()
        self._average = {n: p.detach().clone() for n, p in self._model.transformer.state_dict().items()}
        self._optimizers = _optimizers(self._model.transformer, recipe)

    def advance(self) -> float:
        """Do one training step and return its loss.

        Raises:
            TrainingError: the loss is not finite.
        """
        warmup = min(1.0, (self.training_steps_done + 1) / self.recipe.warmup_training_steps)
        self._model.transformer.train()
        loss = self._loss()
        if not math.isfinite(loss.item()):
            raise TrainingError(
                f"pre-training loss is {loss.item()} after {self.training_steps_done} training steps; "
                "lower the learning rates"
            )
        loss.backward()
        for optimizer, rate in self._optimizers:
            optimizer.param_groups[0]["lr"] = rate * warmup
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.training_steps_done += 1
        # The ramp lets the average quickly forget the untrained weights.
        done = self.training_steps_done
        decay = min(self.recipe.average_decay, (1 + done) / (10 + done))
        with torch.no_grad():
            for name, value in self._model.transformer.state_dict().items():
                self._average[name].lerp_(value, 1 - decay)
        return loss.item()

    def averaged_model(self, training: dict[str, object] | None = None) -> EmbeddedModel:
        """Return a model with the moving average of the weights so far."""
        model = self._model
        transformer = _build_transformer(self.recipe, model.codec.channels)
        transformer.load_state_dict(self._average)
        settings = model.settings.model_copy(update={"training": dict(training or {})})
        return EmbeddedModel(settings, model.codec, transformer)

    def _untrained_model(self) -> EmbeddedModel:
        task, recipe = self.task, self.recipe
        edits = bool(task.draw_prompt(np.random.default_rng(self.seed)).source)
        settings = EmbeddedSettings(
            task=task.name, height=task.height, width=task.width, text_length=task.text_length,
            text_width=recipe.text_width, seed=self.seed, edits=edits, frames=task.frames,
            guided=recipe.prompt_dropout > 0,
        )  # fmt: skip
        if recipe.start:
            start = EmbeddedModel.load(recipe.start)
            transformer = _build_transformer(recipe, start.codec.channels)
            transformer.load_state_dict(start.transformer.state_dict())
            return EmbeddedModel(settings, start.codec, transformer)
        pictures = [task.render(task.draw_prompt(self._data), self._data) for _ in range(recipe.codec_images)]
        codec = PatchCodec.fit(stacked_frames(np.stack(pictures)), recipe.components, recipe.whitening)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            transformer = _build_transformer(recipe, codec.channels)
        # adaLN-zero (Peebles and Xie, 2023): every block starts as the identity, the output as zero.
        # diffusers leaves this to the checkpoint; without it a minute of training is not enough.
        with torch.no_grad():
            for name, parameter in transformer.named_parameters():
                if any(part in name for part in ("img_mod", "txt_mod", "norm_out", "proj_out")):
                    parameter.zero_()
        return EmbeddedModel(settings, codec, transformer)

    def _loss(self) -> torch.Tensor:
        """Flow matching: x = (1 - sigma) x0 + sigma noise, target noise - x0, logit-normal sigma."""
        size = self.recipe.batch_size
        prompts = [self.task.draw_prompt(self._data) for _ in range(size)]
        clean_BSC = self._model.encode(np.stack([self.task.render(p, self._data) for p in prompts]))
        noise_BSC = torch.randn(clean_BSC.shape, generator=self._noise)
        sigma_B = (torch.randn(size, generator=self._noise) + self.recipe.sigma_shift).sigmoid()
        mixed_BSC = torch.lerp(clean_BSC, noise_BSC, sigma_B[:, None, None])
        texts, sources = [prompt.text for prompt in prompts], [prompt.source for prompt in prompts]
        if self._model.settings.edits:
            conditioning = self._model.encode_edits(texts, [read_source(source) for source in sources])
        else:
            conditioning = self._model.encode_prompts(texts)
        if self.recipe.prompt_dropout:
            dropped_B = torch.from_numpy(self._data.random(size) < self.recipe.prompt_dropout)
            conditioning = without_prompts(conditioning, dropped_B)
        velocity_BSC = self._model.velocity(mixed_BSC, sigma_B, conditioning)
        return (velocity_BSC - (noise_BSC - clean_BSC)).square().mean()


def pretrain(
    name: str,
    out_dir: str | Path,
    *,
    seed: int = 0,
    recipe: Recipe | None = None,
    callback: Callable[[int, int, float], None] | None = None,
) -> PretrainReport:
    """Write `out_dir`/NAME and, if the recipe has sparse weights, `out_dir`/NAME-sparse, in one run.

    The same seed gives bit-identical weights on the same machine with one torch thread.

    Args:
        name: a name of `RECIPES`.
        recipe: settings to use instead of those in `RECIPES`.
        callback: called after each training step, with the number of steps done, their total and the loss.

    Raises:
        ConfigurationError: the name is unknown, or the sparse weights do not come before the main ones.
        TrainingError: the loss is not finite.
    """
    if recipe is None:
        if name not in RECIPES:
            raise ConfigurationError(
                f"unknown embedded model {name!r}; choose one of: {', '.join(sorted(RECIPES))}"
            )
        recipe = RECIPES[name]
    task = find_task(recipe.task or name)
    if not 0 <= recipe.sparse_training_steps < recipe.training_steps:
        raise ConfigurationError(
            f"sparse_training_steps is {recipe.sparse_training_steps}; it must lie between 0 (none) "
            f"and training_steps - 1 = {recipe.training_steps - 1}"
        )
    started = time.process_time()
    run = Pretraining(task, recipe, seed)
    main_folder, sparse_folder = Path(out_dir) / name, None
    folders = {recipe.training_steps: main_folder}
    if recipe.sparse_training_steps:
        sparse_folder = Path(out_dir) / f"{name}-sparse"
        folders[recipe.sparse_training_steps] = sparse_folder
    losses: list[float] = []
    for done in range(1, recipe.training_steps + 1):
        losses.append(run.advance())
        if done in folders:
            run.averaged_model({**asdict(recipe), "training_steps_done": done}).save(folders[done])
        if callback is not None:
            callback(done, recipe.training_steps, losses[-1])
    tenth = max(1, len(losses) // 10)
    parameters = sum(p.numel() for p in run.averaged_model().transformer.parameters())
    return PretrainReport(
        name=name,
        seed=seed,
        parameters=parameters,
        loss_at_start=sum(losses[:tenth]) / tenth,
        loss_at_end=sum(losses[-tenth:]) / tenth,
        cpu_s=time.process_time() - started,
        main_folder=main_folder,
        sparse_folder=sparse_folder,
    )


def _build_transformer(recipe: Recipe, channels: int) -> QwenImageTransformer2DModel:
    return QwenImageTransformer2DModel(
        patch_size=1,
        in_channels=channels,
        out_channels=channels,
        num_layers=recipe.layers,
        attention_head_dim=recipe.head_width,
        num_attention_heads=recipe.heads,
        joint_attention_dim=recipe.text_width,
        axes_dims_rope=recipe.rope_axes,
    )


def _optimizers(transformer: torch.nn.Module, recipe: Recipe) -> list[tuple[torch.optim.Optimizer, float]]:
    """Return (optimiser, its learning rate): Muon for the blocks' matrices, AdamW for the rest."""
    matrices, rest = [], []
    for name, parameter in transformer.named_parameters():
        in_block = name.startswith("transformer_blocks.") and parameter.ndim == 2
        (matrices if in_block else rest).append(parameter)
    muon = torch.optim.Muon(matrices, lr=recipe.muon_learning_rate, weight_decay=0.0)
    adamw = torch.optim.AdamW(rest, lr=recipe.adamw_learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
    return [(muon, recipe.muon_learning_rate), (adamw, recipe.adamw_learning_rate)]
