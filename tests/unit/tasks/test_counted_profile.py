"""Counted profiles: operations as torch counts them, ranges against published timings, and their mark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    Flux2Transformer2DModel,
    FluxTransformer2DModel,
    HunyuanVideo15Transformer3DModel,
    QwenImage21Transformer2DModel,
    QwenImageTransformer2DModel,
    SanaTransformer2DModel,
    SD3Transformer2DModel,
    WanTransformer3DModel,
    ZImageTransformer2DModel,
)
from diffusers.pipelines.sana import pipeline_sana
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gpu_runtime.models.checks.sizing import device_memory
from gpu_runtime.models.published import counted_families, published_model
from gpu_runtime.simulator.profile import Profile, Quantity
from storage.config.loading import load_config
from storage.config.model import ModelConfig
from storage.errors import ConfigurationError
from storage.home import Home
from tasks.gpu_profile import GPUS, counted_profile, named_gpu
from tasks.profiles import find_profile
from tests.unit.tasks.test_what_if import answered, asked

WHAT_IF = (Path(__file__).parents[3] / "docs/explanation/what-if.md").read_text()
SIDE, TEXT = 16, 64
IMAGE = SIDE**2
H100 = named_gpu("H100")
QWEN = ("--preset", "qwen-image-ocr-512", "--iterations", "2")


def empty(**shapes: tuple[int, ...]) -> dict[str, Any]:
    return {name: torch.empty(*shape) for name, shape in shapes.items()}


def hunyuan_pass(transformer: Any, latents: torch.Tensor, text: torch.Tensor, time: torch.Tensor) -> None:
    """A forward pass but for the order of its text tokens, which depends on what they hold."""
    mask, embedded = torch.ones(text.shape[:2]), transformer.time_embed(time)
    image, text = transformer.x_embedder(latents), transformer.context_embedder(text, time, mask)
    for block in transformer.transformer_blocks:
        image, text = block(image, text, embedded, mask, None)
    transformer.proj_out(transformer.norm_out(image, embedded))


def qwen_21_pass(transformer: Any, latents: torch.Tensor, text: torch.Tensor, time: torch.Tensor) -> None:
    """The same of another; its text attends all tokens here, and is short."""
    joint = torch.cat([transformer.txt_in(text), transformer.img_in(latents)], dim=1)
    embedded = transformer.time_text_embed(time, joint)
    modulation = transformer.modulation(embedded)
    for block in transformer.transformer_blocks:
        joint = block(joint, modulation)
    transformer.proj_out(transformer.norm_out(joint, embedded, None))


PASSES = {"hunyuan-video-1.5": hunyuan_pass, "qwen-image-2.1": qwen_21_pass}


ONE, TOKENS, LATENT = (1,), (1, IMAGE, 64), (1, 16, 2 * SIDE, 2 * SIDE)


def text(width: int) -> tuple[int, int, int]:
    return (1, TEXT, width)


def qwen_inputs(width: int) -> dict[str, Any]:
    given = empty(hidden_states=TOKENS, encoder_hidden_states=text(width), timestep=ONE)
    return given | {"img_shapes": [[(1, SIDE, SIDE)]]}


CLASSES: dict[str, tuple[Any, Callable[[int], dict[str, Any]]]] = {
    "flux": (FluxTransformer2DModel, lambda width: empty(
        hidden_states=TOKENS, encoder_hidden_states=text(width), pooled_projections=(1, 768), timestep=ONE,
        guidance=ONE, img_ids=(IMAGE, 3), txt_ids=(TEXT, 3),
    )),
    "flux2-klein": (Flux2Transformer2DModel, lambda width: empty(
        hidden_states=(1, IMAGE, 128), encoder_hidden_states=text(width), timestep=ONE,
        img_ids=(1, IMAGE, 4), txt_ids=(1, TEXT, 4),
    )),
    "sd3.5": (SD3Transformer2DModel, lambda width: empty(
        hidden_states=LATENT, timestep=ONE, encoder_hidden_states=text(width), pooled_projections=(1, 2048),
    )),
    "qwen-image": (QwenImageTransformer2DModel, qwen_inputs),
    "qwen-image-edit-plus": (QwenImageTransformer2DModel, qwen_inputs),
    "sana": (SanaTransformer2DModel, lambda width: empty(
        hidden_states=(1, 32, SIDE, SIDE), timestep=ONE, encoder_hidden_states=text(2304),
        encoder_attention_mask=(1, TEXT),
    )),
    "qwen-image-2.1": (QwenImage21Transformer2DModel, lambda width: empty(
        latents=TOKENS, text=text(4096), time=ONE,
    )),
    "hunyuan-video-1.5": (HunyuanVideo15Transformer3DModel, lambda width: empty(
        latents=(1, 65, 1, SIDE, SIDE), text=text(width), time=ONE,
    )),
    "wan2.2": (WanTransformer3DModel, lambda width: empty(
        hidden_states=(1, 48 if width < 8000 else 16, 1, 2 * SIDE, 2 * SIDE), timestep=ONE,
        encoder_hidden_states=text(4096),
    )),
    "z-image": (ZImageTransformer2DModel, lambda width: {
        "x": [torch.empty(16, 1, 2 * SIDE, 2 * SIDE)], "t": torch.empty(1),
        "cap_feats": [torch.empty(TEXT, width)],
    }),
}  # fmt: skip
PASSES = {"hunyuan-video-1.5": hunyuan_pass, "qwen-image-2.1": qwen_21_pass}


def test_every_counted_family_is_held_against_its_class():
    assert set(counted_families()) == set(CLASSES)


@pytest.mark.parametrize(
    ("family", "path"),
    [("flux", "x"), ("sd3.5", "x/stable-diffusion-3.5-medium"), ("sd3.5", "/models/sd3.5-large"),
     ("qwen-image", "x"), ("qwen-image-edit-plus", "x"), ("z-image", "x"), ("sana", "x"),
     ("qwen-image-2.1", "x"), ("hunyuan-video-1.5", "x"), ("wan2.2", "x"),
     ("wan2.2", "hub/Wan2.2-T2V-A14B-Diffusers"), ("flux2-klein", "hub/FLUX.2-klein-base-4B"),
     ("flux2-klein", "hub/FLUX.2-klein-9B")],
)  # fmt: skip
def test_operations_and_weights_are_those_of_the_real_class(family: str, path: str):
    model = published_model(ModelConfig(family=family, path=path))
    assert model is not None
    transformer_class, inputs = CLASSES[family]
    with torch.device("meta"):
        transformer = transformer_class(**model.transformer)
        given = inputs(model.architecture.text_width)
    counter = FlopCounterMode(display=False)
    with torch.device("meta"), counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        if family in PASSES:
            PASSES[family](transformer, **given)
        else:
            transformer(**given, return_dict=False)
    counted = model.architecture.operations(IMAGE, TEXT).forward
    assert counted == pytest.approx(counter.get_total_flops(), rel=0.002)
    weights = sum(weight.numel() for weight in transformer.parameters())
    assert model.architecture.numbers == pytest.approx(weights, rel=0.025)


PUBLISHED = [
    # Family, model, side, steps, guidance, GPU, seconds of an image, and where it is published.
    ("flux", "FLUX.1-dev", 1024, 28, 1, "H100", 6.71, "xDiT, docs/performance/flux.md, eager"),
    ("flux", "FLUX.1-dev", 1024, 28, 1, "H100", 4.30, "the same, compiled"),
    ("flux", "FLUX.1-dev", 1024, 50, 1, "H100", 12.339, "onnxruntime, pull request 22986, torch 2.5.1 eager"),
    ("flux", "FLUX.1-dev", 1024, 50, 1, "H100", 8.198, "the same, compiled"),
    ("flux", "FLUX.1-dev", 1024, 28, 1, "A100", 15.65, "varadrane1707/BenchmarkFlux, README, BF16"),
    ("sd3.5", "stable-diffusion-3.5-large", 1024, 50, 4.5, "H100", 11.615, "onnxruntime, 22986, eager"),
    ("sd3.5", "stable-diffusion-3.5-large", 1024, 50, 4.5, "H100", 7.466, "the same, compiled"),
    ("qwen-image", "Qwen-Image", 512, 20, 4, "H100", 2.32, "vllm-omni, pull request 2707, denoising alone"),
    ("qwen-image", "Qwen-Image", 1536, 35, 4, "H100", 23.19, "the same"),
    ("qwen-image", "Qwen-Image", 512, 20, 4, "H200", 2.166, "vllm-omni, issue 3266, denoising alone"),
    ("z-image", "Z-Image-Turbo", 1024, 8, 1, "H100", 1.0, "its model card: below a second on an H800"),
]


def test_published_timings_lie_within_the_counted_range_as_far_from_its_middle_as_the_document_says():
    off = []
    for family, name, side, steps, guidance, gpu, published_s, source in PUBLISHED:
        # One image at a time, and no adapters to speak of.
        changes = [
            f"model.path=hub/{name}", f"model.height={side}", f"model.width={side}",
            f"model.guidance={guidance}", "adaptation.rank=1",
        ]  # fmt: skip
        profile = counted_profile(load_config(f"{family}-ocr-512", changes, {}), named_gpu(gpu))
        low, middle, high = (steps * each for each in profile.counted_ranges(1)["step_s"].values())
        off.append(100 * (published_s / middle - 1))
        assert low < published_s < high, (name, side, gpu, source)
    assert len(off) == 11
    share = [f"{100 * end:.0f}" for end in H100.share]
    for claim in (
        f"Eleven published timings lie inside, {-min(off):.0f} % below to {max(off):.0f} % above the middle",
        f"at a share of the GPU's peak (H100: {share[0]} to {share[1]} %)",
    ):
        assert claim in WHAT_IF, claim


def test_a_counted_figure_lies_in_the_middle_of_its_range():
    found = Quantity.counted(1.0, 4.0, "by hand")
    assert (found.value, found.evidence) == (2.0, "counted")
    assert found.range == pytest.approx((1.0, 4.0))
    assert Quantity.counted(0.0, 0.0, "nothing").range == (0.0, 0.0)


@pytest.mark.parametrize(("preset", "one_by_one"), [("qwen-image-ocr-512", False), ("z-image-ocr-512", True)])
def test_the_parts_of_an_iteration_by_hand(preset: str, one_by_one: bool):
    """On an H100: from 19 to 66 % of 989 tera-operations a second, and 3.35 TB/s."""
    config = load_config(preset, ["model.encoders=resident"], {})
    model = published_model(config.model)
    assert model is not None and model.cuts_padding == one_by_one
    profile, batch = counted_profile(config, H100), config.sampling.batch_size
    passes, tokens, shape = model.passes(config.model), model.tokens(config.model), model.architecture
    adapters = config.adaptation.rank, config.adaptation.adapts_feed_forward
    one, forwards = shape.operations(*tokens, *adapters), 2  # the second for gradient checkpointing
    moved = passes * (
        batch * shape.moved_bytes(*tokens, 1) if one_by_one else shape.moved_bytes(*tokens, batch)
    )

    def ends(operations: float, moved: float = 0.0) -> Any:
        return pytest.approx([operations / (989e12 * share) + moved / 3.35e12 for share in (0.66, 0.19)])

    forward = passes * (one.forward + one.adapters)
    low, high = profile.step.range
    assert [profile.step_s(batch) * end for end in (low, high)] == ends(batch * forward, moved)
    assert [step.batch for step in profile.steps if step.degree == 1] == [1, batch]
    if not one_by_one:
        assert profile.step_s(batch, 2) == pytest.approx(profile.step_s(batch) / 1.71, rel=1e-4)
    rows = config.sampling.window_size
    trained = rows * (forwards * forward + passes * one.backward)
    assert profile.train_sample_s.range == ends(trained, rows * (forwards + 2) * moved / batch)
    encoded = 2 * model.encoders * tokens[1] * config.algorithm.prompts_per_iteration
    assert profile.driver_s.range == ends(encoded)
    assert profile.driver_s.source.endswith(" operations, 0 bytes moved; records left out")
    decoded = model.decoding * 512**2
    assert profile.decode_s.range == pytest.approx((decoded / (989e12 / 2 * 0.66), decoded / (67e12 * 0.5)))
    loaded = 2 * (shape.numbers + model.encoders) + 4 * model.vae
    assumed = {
        "score_s": (0.15, 0.6), "weights_s": (1.5 + 4 * shape.adapters(*adapters) / 1.25e9, 0.5),
        "start_s": (180 + loaded / 1e9, 0.5), "regroup_s": (0.5, 0.8),
    }  # fmt: skip
    for name, (value, uncertainty) in assumed.items():
        found = profile.quantities[name]
        assert (found.value, found.uncertainty, found.evidence) == (value, uncertainty, "modelled"), name


def test_offloaded_encoders_are_moved_once_or_for_each_prompt():
    def ends(*changes: str) -> tuple[float, float]:
        changes = ("algorithm.prompts_per_iteration=8", *changes)
        return counted_profile(load_config("qwen-image-ocr-512", changes, {}), H100).driver_s.range

    (low, high), (low_there, high_there) = ends(), ends("model.encoders=resident")
    # 8.29 billion weights of two bytes, to the GPU alone, at 50 and at 12 GB/s.
    assert low - low_there == pytest.approx(2 * 8.29e9 / 50e9)
    assert high - high_there == pytest.approx(8 * 2 * 8.29e9 / 12e9)
    assert ends("algorithm.prompts_per_iteration=4096")[1] > high, "no number of prompts is refused"


def test_both_of_two_experts_are_held_and_those_that_are_trained_have_adapters():
    def term(name: str, *changes: str) -> float:
        config = load_config("wan2.2-a14b-ocr-480", list(changes), {})
        model = published_model(config.model)
        assert model is not None
        held = device_memory(config, model, keeps_reference=False).held
        return next(each.low for each in held if each.name == name)

    assert term("transformer") == pytest.approx(2 * 2 * 14.29e9, rel=0.001)
    both, high = (
        term("adapters, float32", f"model.options.experts={experts}") for experts in ("both", "high")
    )
    assert both == 2 * high > 0


def test_work_follows_the_settings():
    def seconds(*changes: str, preset: str = "qwen-image-ocr-512") -> dict[str, float]:
        found = counted_profile(load_config(preset, list(changes), {}), named_gpu("H100")).counted_ranges(8)
        return {name: each["value"] for name, each in found.items()}

    plain = seconds()
    assert seconds("model.guidance=1")["step_s"] == pytest.approx(plain["step_s"] / 2)
    less = seconds("adaptation.gradient_checkpointing=false")
    assert less["step_s"] == plain["step_s"] and less["train_sample_s"] < 0.8 * plain["train_sample_s"]
    assert seconds("sampling.window_size=1")["train_sample_s"] == pytest.approx(plain["train_sample_s"] / 2)
    once = "algorithm.updates_per_iteration=1"
    fresh = seconds("algorithm.objective=nft", "algorithm.options={}", once)
    assert fresh["train_sample_s"] == pytest.approx(5 / 2 * plain["train_sample_s"]), "its default of levels"
    compared = seconds("algorithm.objective=nft", "algorithm.options={}", "algorithm.kl_weight=0.1", once)
    for objective, share in (("nft", 1), ("awm", 1), ("grpo", 0)):
        # Rows of later updates also take a pass of the old policy.
        given = f"algorithm.objective={objective}", "algorithm.options={}"
        first, reference = (seconds(*given, once, *kl) for kl in ((), ("algorithm.kl_weight=0.1",)))
        whole = reference["train_sample_s"] - first["train_sample_s"]
        for updates in (2, 4):
            more = seconds(*given, f"algorithm.updates_per_iteration={updates}")["train_sample_s"]
            expected = pytest.approx(share * whole * (updates - 1) / updates, rel=1e-3)
            assert more - first["train_sample_s"] == expected
    pairs = seconds("algorithm.objective=dpo", "algorithm.options={pairs = 2}", "algorithm.group_size=8")
    # Four of eight samples are trained on, each with a pass of the reference.
    assert pairs["train_sample_s"] == pytest.approx(compared["train_sample_s"] / 2)
    assert seconds("model.encoders=resident")["driver_s"] < plain["driver_s"]
    edits = [seconds("model.family=qwen-image-edit-plus", f"model.options={{images = {n}}}") for n in (1, 3)]
    assert plain["step_s"] < edits[0]["step_s"] < edits[1]["step_s"], "sources are tokens"
    assert seconds("algorithm.kl_weight=0.1")["train_sample_s"] > 1.2 * plain["train_sample_s"]
    shared = counted_profile(load_config("qwen-image-ocr-512", [], {}), named_gpu("rtx 4090"))
    assert shared.degrees == (1,), "no links"


def shipped(*changes: str, preset: str = "qwen-image-ocr-512") -> Profile:
    """The profile that is taken where none is named, which was measured on an H100."""
    return find_profile(Home(Path("nowhere")), load_config(preset, list(changes), {}), None)


NFT = ("algorithm.objective=nft", "algorithm.options={}")


@pytest.mark.parametrize(
    ("changes", "step", "training", "evidence"),
    [
        (("model.guidance=1",), 0.5, 0.5, ("measured", "measured")),
        (("sampling.window_size=5",), 1, 2.5, ("measured", "measured")),
        ((*NFT, "algorithm.updates_per_iteration=1"), 1, 2.5, ("measured", "measured")),
        (NFT, 1, None, ("measured", "scaled")),
        (("algorithm.objective=nft", "algorithm.options={times = 20}"), 1, None, ("measured", "scaled")),
        (("algorithm.kl_weight=0.04",), 1, None, ("measured", "scaled")),
        (("adaptation.gradient_checkpointing=false",), 1, None, ("measured", "scaled")),
        (("model.text_length=512",), None, None, ("scaled", "scaled")),
        (("model.compile=true",), 0.365 / 0.570, None, ("measured", "counted")),
        (("model.height=768", "model.width=768"), None, None, ("counted", "counted")),
    ],
)
def test_shipped_measurements_follow_the_settings(
    changes: tuple[str, ...], step: float | None, training: float | None, evidence: tuple[str, str]
):
    """A measured time counts by passes and rows; other work scales it as it does the counted one."""
    plain, found = shipped(), shipped(*changes)
    counted, other = (
        counted_profile(load_config("qwen-image-ocr-512", list(each), {}), H100) for each in ((), changes)
    )
    assert (plain.step.evidence, plain.train_sample_s.evidence) == ("measured", "measured")
    assert (found.step.evidence, found.train_sample_s.evidence) == evidence
    if "counted" in evidence:
        assert found.train_sample_s == other.train_sample_s
    else:
        more = other.train_sample_s.value / counted.train_sample_s.value if training is None else training
        # The count has moved bytes as well.
        assert found.train_sample_s.value / plain.train_sample_s.value == pytest.approx(more, rel=0.02)
    if evidence[0] == "counted":
        assert found == other
    else:
        more = other.step_s(8) / counted.step_s(8) if step is None else step
        assert found.step_s(8) / plain.step_s(8) == pytest.approx(more, rel=0.02)


def test_a_shipped_measurement_is_named_by_its_file_and_refused_where_it_does_not_fit():
    def named(*changes: str) -> Profile:
        config = load_config("qwen-image-ocr-512", list(changes), {})
        return find_profile(Home(Path("nowhere")), config, "qwen-image-h100")

    assert named("sampling.window_size=5").train_sample_s == shipped("sampling.window_size=5").train_sample_s
    for changes, said in {
        ("model.height=768", "model.width=768"): r"qwen-image-h100.json has no step_s at 768x768; measure",
        ("model.height=768",): r"is for qwen-image at square sizes, but the run has qwen-image at 512x768",
    }.items():
        with pytest.raises(ConfigurationError, match=said):
            named(*changes)


def test_a_run_that_does_more_is_dearer_and_what_its_price_rests_on_is_said():
    def usd(*more: str, preset: str = "qwen-image-ocr-512") -> tuple[float, str]:
        run = ("--preset", preset, "--iterations", "3", "--reserved", "2", "--spot", "0", *more)
        answer = answered(*run, "--trainers", "2", "--policies", "reserved", "--windows", "1")
        return answer["policies"][0]["usd"]["median"], answer["answer"].partition("spot devices, ")[2]

    nft = ("--set", "algorithm.objective=nft", "--set", "algorithm.options={}")
    unguided = usd(preset="qwen-image-ocr-512-unguided")
    plain, reference = usd(), usd("--set", "algorithm.kl_weight=0.04")
    window, objective = usd("--set", "sampling.window_size=5"), usd(*nft)
    assert unguided[0] < 0.7 * plain[0] and plain[0] < reference[0] < window[0]
    assert objective[0] > window[0], "five rows of a sample, too, and the old policy's passes"
    assert plain[1] == unguided[1] == window[1] == "simulated from measured steps."
    assert reference[1] == "simulated from measured steps and scaled training."
    assert usd("--set", "model.compile=true")[1] == "simulated from measured steps and counted training."
    assert usd("--set", "model.text_length=256")[1] == "simulated from steps scaled from measured ones."


@pytest.mark.parametrize("preset", ["sd3.5-ocr-512", "flux-geneval-1280", "z-image-ocr-512"])
def test_each_preset_has_a_profile_on_every_gpu(preset: str):
    config = load_config(preset, [], {})
    times = [counted_profile(config, gpu).step_s(config.sampling.batch_size) for gpu in GPUS]
    assert times == sorted(times, reverse=True), "from the slowest to the fastest"


def test_every_answer_from_counted_times_is_marked_and_covers_their_range():
    options = (
        *QWEN, "--gpu", "A100", "--price", "5,2", "--reserved", "2", "--spot", "0", "--policies", "reserved",
    )  # fmt: skip
    answer = answered(*options)
    [row] = answer["policies"]
    assert answer["evidence"] == row["evidence"] == answer["profile"]["step"]["evidence"] == "counted"
    step = answer["counted"]["step_s"]
    assert step["low"] < step["value"] < step["high"] < 3 * step["low"]
    assert answer["answer"].endswith("counted and not measured.")
    # Computing takes most of the time, and the futures include both ends.
    assert row["wall_s"]["high"] / row["wall_s"]["low"] > 1.3
    table = asked(*options)
    assert "Counted: 2 iterations" in table and "Modelled" not in table
    for futures, said in (("2", "3 futures or more"), ("3", "the futures")):
        words = answered(*options, "--windows", futures)["counted_in_words"]
        assert words.endswith(f"; {said} cover both ends.")
    assert f"step_s {step['value']:.2g} ({step['low']:.2g} to {step['high']:.2g})" in table
    modelled = answered("--preset", "smoke", "--spot", "0", "--windows", "1")
    assert (modelled["evidence"], modelled["counted"]) == ("modelled", {})


def test_a_preset_without_a_task_is_asked_about_and_what_stands_in_is_said():
    options = ("--gpu", "H100", "--reserved", "1", "--spot", "1", "--windows", "1")
    answer = answered("--preset", "sd3.5-512", *options)
    [profile] = [line for line in answer["basis"] if line.startswith("profile ")]
    assert profile.endswith("; no reward is set: 0.15 s an image, like a detector's, stand in for it")
    assert answer["curves"] is None and answer["policies"][0]["usd"]["median"] > 0
    with pytest.raises(ConfigurationError, match=r"prompts\.evaluate: not set, and the preset has no task"):
        asked("--preset", "sd3.5-512", *options, "--record")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--gpu", "H100"), "simulated from measured steps."),
        (("--gpu", "H100,A100", "--price", "5,2"), "counted and not measured."),
        (("--gpu", "H100", "--degree", "2", "--per-instance", "2"), "counted and not measured."),
    ],
)
def test_an_answer_rests_on_measured_steps_if_all_that_are_taken_were_measured(
    options: tuple[str, ...], said: str
):
    run = ("--preset", "qwen-image-ocr-512", "--reserved", "2", "--spot", "2", "--iterations", "2")
    answer = answered(*run, *options, "--policies", "spot", "--windows", "1")
    assert answer["answer"].endswith(said)
    assert answer["evidence"] == ("modelled" if "simulated" in said else "counted")


def test_a_gpu_has_its_known_price_unless_one_is_given(tmp_path: Path):
    def prices(*more: str) -> tuple[float, float]:
        options = (*QWEN, "--reserved", "1", "--spot", "1", "--policies", "spot", "--windows", "1")
        answer = answered(*options, *more)
        return answer["reserved_usd_per_hour"], answer["spot_usd_per_hour"]

    assert prices("--gpu", "h100") == (10.98, 2.51)
    assert prices("--gpu", "H200") == (7.91, 3.15)
    assert prices("--gpu", "A100", "--price", "5,2") == (5.0, 2.0)
    given = ("--set", "price.reserved_usd_per_hour=4")
    assert prices("--gpu", "A100,H100", *given) == (4.0, 2.51), "only the price of an H100 is looked up"
    book = ("--set", "price.book=builtin:known", "--set", "price.offer=H100@gcp/us-east4,gcp/us-central1")
    assert prices("--gpu", "H200", *book) == (10.98, 3.35), "those of the book"
    file = tmp_path / "spot.csv"
    file.write_text("time,market,usd_per_hour\n0,spot,2\n36000,spot,2\n")
    assert prices("--gpu", "H200", "--prices", str(file)) == (7.91, 2.0), "the file has no price on demand"
    with pytest.raises(ConfigurationError, match="the price of an A100 is unknown"):
        prices("--gpu", "A100", "--prices", str(file))


PARTS = {
    "step_512_b16": {"step_s": 0.8, "batch": 16},
    "step_512_b8": {"step_s": 0.5, "batch": 8},
    "step_512_b32": {"out_of_memory": "CUDA out of memory"},
    "step_512_compiled": {"step_s": 0.6, "batch": 16},
    "train_512": {"train_s": 8.0, "samples": 16, "rows": 32},
    "train_512_compiled": {"failed": "RuntimeError: no Triton"},
    "decode_512": {"decode_s_an_image": 0.04},
}


def written(folder: Path, parts: dict[str, Any], kept: bool = True, **figures: Any) -> str:
    """A result as the benchmark writes it."""
    compiled = {name: part for name, part in parts.items() if name.endswith("compiled")}
    figures = {
        "device": "NVIDIA H200", "date": "2026-11-20", "tiny": False,
        "by_stage": {
            "bits": {"status": "failed", "error": "no matter", "figures": {}},
            "qwen_image": {"status": "done", "figures": {"parts": parts}},
            "variants": {"status": "cut", "figures": {"parts": compiled}},
        },
        **figures,
    }  # fmt: skip
    path = folder / "gpu_day.json"
    path.write_text(json.dumps({"benchmark": "gpu_day", "figures": figures} if kept else figures))
    return str(path)


@pytest.mark.parametrize(
    ("device", "counted_as"),
    [
        ("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100"), ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA GH200 480GB", "H100"),  # not counted
    ],
)  # fmt: skip
def test_what_was_not_measured_is_that_of_the_device_or_of_the_default_gpu(
    tmp_path: Path, device: str, counted_as: str
):
    config = load_config("qwen-image-ocr-512", [], {})
    parts = {"step_512_b8": PARTS["step_512_b8"]}
    profile = find_profile(Home(tmp_path), config, written(tmp_path, parts, device=device))
    assert profile.train_sample_s == counted_profile(config, named_gpu(counted_as)).train_sample_s


@pytest.mark.parametrize("kept", [True, False])
def test_what_was_measured_names_its_device_and_date_and_the_rest_is_carried(tmp_path: Path, kept: bool):
    config = load_config("qwen-image-ocr-512", ["model.guidance=1"], {})
    profile = find_profile(Home(tmp_path), config, written(tmp_path, PARTS, kept))
    assert (profile.device, profile.degrees) == ("NVIDIA H200", (1, 2, 4, 8))
    assert (profile.step_s(8), profile.step_s(16), profile.step_s(12)) == pytest.approx((0.5, 0.8, 0.65))
    assert profile.decode_s.value == 0.04
    # 32 rows in 8 s; a sample has two.
    assert profile.train_sample_s.value == pytest.approx(8 / 32 * config.sampling.window_size)
    assert set(profile.evidence["measured"]) == {"step", "decode_s", "train_sample_s"}
    for quantity in (profile.step, profile.decode_s, profile.train_sample_s):
        assert quantity.source.endswith("on NVIDIA H200, 2026-11-20")
    carried = find_profile(Home(tmp_path), config, None)
    assert profile.score_s == carried.score_s and profile.start_s == carried.start_s
    assert profile.score_s.evidence == "modelled"


def test_guidance_counts_a_step_twice(tmp_path: Path):
    config = load_config("qwen-image-ocr-512", [], {})
    profile = find_profile(Home(tmp_path), config, written(tmp_path, PARTS))
    assert profile.step_s(8) == pytest.approx(1.0) and profile.step.value == 1.0
    assert profile.train_sample_s.value == pytest.approx(2 * 8 / 32 * config.sampling.window_size)
    assert profile.step.source.endswith("2026-11-20, counted twice for guidance")
    assert profile.decode_s.source.endswith("2026-11-20")


def test_compiled_blocks_take_compiled_parts_and_what_failed_is_carried(tmp_path: Path):
    config = load_config("qwen-image-ocr-512", ["model.guidance=1", "model.compile=true"], {})
    profile = find_profile(Home(tmp_path), config, written(tmp_path, PARTS))
    assert profile.step_s(16) == pytest.approx(0.6) and "step_512_compiled" in profile.step.source
    assert profile.train_sample_s == find_profile(Home(tmp_path), config, "H200").train_sample_s
    assert profile.train_sample_s.evidence == "counted"


def test_sana_s_weights_are_those_that_were_made_for_bfloat16():
    """Those of `Sana_1600M_1024px_diffusers` were trained in float16, which holds three more bits."""
    model = load_config("sana-1024", [], {}).model
    assert f'"{model.path}", torch_dtype' in pipeline_sana.EXAMPLE_DOC_STRING
    assert "transformer.to(torch.bfloat16)" in pipeline_sana.EXAMPLE_DOC_STRING
    counted = published_model(model)
    assert counted is not None and counted.name == model.path
