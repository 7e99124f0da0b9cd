"""Pipelines of the real classes with tiny random weights, saved to disk in the hub's own layout.

Widths are multiples of 32, for the reason that tests/tiny_model.py gives.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderDC,
    AutoencoderKL,
    AutoencoderKLFlux2,
    AutoencoderKLHunyuanVideo15,
    AutoencoderKLQwenImage,
    AutoencoderKLQwenImage21,
    AutoencoderKLWan,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
    FluxKontextPipeline,
    FluxPipeline,
    FluxTransformer2DModel,
    HunyuanVideo15Pipeline,
    HunyuanVideo15Transformer3DModel,
    QwenImage21Pipeline,
    QwenImage21Transformer2DModel,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SanaPipeline,
    SanaTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from diffusers.guiders import ClassifierFreeGuidance
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import (
    ByT5Tokenizer,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Gemma2Config,
    Gemma2Model,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLTextConfig,
    Qwen2_5_VLTextModel,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
    UMT5Config,
    UMT5EncoderModel,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

Saved = Callable[[str], Path]
"""From a family to the folder of its saved pipeline."""

WIDTH, LATENT = 32, 4
SIDE = 16
"""Pixels of an image's side; the VAEs halve it, the transformers' patches halve it again."""

_CORPUS = [
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, "
    "spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n",
    'a photo of a red sign that says "K7B" on a blue wall<|im_end|>\n<|im_start|>assistant\n',
]
_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] if "
    "message['content'] is string else message['content'][0]['text'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_pipeline(family: str, folder: Path, seed: int = 0) -> Path:
    """Save a pipeline of a family of `gpu_runtime.models.registry`; the same weights for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = _wan(dense=False) if family == TWO_EXPERTS else PIPELINES[family]()
        pipeline.save_pretrained(folder)
    if family.startswith("qwen-image-edit"):
        _save_processor(folder, "Qwen2VLProcessor", image_processor())
    if family == "qwen-image-2.1":
        _save_processor(folder, "Qwen3VLProcessor", _vision_tokenizer())
    return folder


def image_processor() -> Any:
    """What prepares images for the tiny encoder of the families that edit, which sees four tokens of each."""
    return Qwen2VLImageProcessorPil(
        patch_size=14, merge_size=2, size={"shortest_edge": 56 * 56, "longest_edge": 56 * 56}
    )


def _save_processor(folder: Path, kind: str, part: Any) -> None:
    """Write the folder of a processor by a part of it: the whole needs torchvision, for videos."""
    part.save_pretrained(folder / "processor")
    index = json.loads((folder / "model_index.json").read_text())
    index["processor"] = ["transformers", kind]
    (folder / "model_index.json").write_text(json.dumps(index))


def processor_of(kind: Any, tokenizer: Any) -> Any:
    """The real processor without its part for videos."""
    processor: Any = kind.__new__(kind)
    processor.image_processor, processor.tokenizer = image_processor(), tokenizer
    processor.video_processor, processor.chat_template = None, tokenizer.chat_template
    for name in ("image", "video"):
        setattr(processor, f"{name}_token", f"<|{name}_pad|>")
        setattr(processor, f"{name}_token_id", tokenizer.convert_tokens_to_ids(f"<|{name}_pad|>"))
    return processor


def _lively(model: Any) -> Any:
    """Weights at which every input counts; the usual start is so small that all outputs are alike."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.6 / parameter.shape[-1] ** 0.5 if parameter.dim() == 2 else 0.1)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1)
    return model.eval()


def _scheduler(**config: Any) -> Any:
    return FlowMatchEulerDiscreteScheduler(**config)


def _bpe_tokenizer(*more: str) -> Any:
    inner = Tokenizer(BPE())
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer: Any = BpeTrainer
    inner.train_from_iterator(
        _CORPUS, trainer(vocab_size=500, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    )
    vocabulary: dict[str, int] = inner.get_vocab()
    merges = [tuple(pair) for pair in json.loads(inner.to_str())["model"]["merges"]]
    tokenizer: Any = Qwen2Tokenizer(vocab=vocabulary, merges=merges)  # pyright: ignore
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", *more]})
    tokenizer.chat_template = _CHAT
    return tokenizer


def _clip_tokenizer() -> Any:
    letters = sorted(ByteLevel.alphabet())
    words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(
        vocab={word: index for index, word in enumerate(words)}, merges=[], model_max_length=77
    )


def _t5_tokenizer() -> Any:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0)]
    pieces += [(chr(code), -3.0) for code in range(33, 127)]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=512)


def _clip(tokenizer: Any, model_class: Any) -> Any:
    count = len(tokenizer)
    config: Any = CLIPTextConfig
    return _lively(
        model_class(
            config(
                vocab_size=count, hidden_size=WIDTH // 2, intermediate_size=WIDTH, num_hidden_layers=2,
                num_attention_heads=2, max_position_embeddings=77, projection_dim=WIDTH // 2,
                bos_token_id=count - 2, eos_token_id=count - 1, pad_token_id=count - 1,
            )
        )
    )  # fmt: skip


def _t5(tokenizer: Any, config: Any = T5Config, model_class: Any = T5EncoderModel) -> Any:
    return _lively(
        model_class(
            config(
                vocab_size=len(tokenizer), d_model=WIDTH, d_kv=16, d_ff=WIDTH, num_layers=2, num_heads=2,
                feed_forward_proj="gated-gelu",
            )
        )
    )  # fmt: skip


def _vae() -> Any:
    vae: Any = AutoencoderKL  # its annotations are of tuples of one
    return _lively(
        vae(
            down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
            block_out_channels=(8, 8), latent_channels=LATENT, norm_num_groups=4, layers_per_block=1,
            scaling_factor=0.36, shift_factor=0.12, use_quant_conv=False, use_post_quant_conv=False,
        )
    )  # fmt: skip


def _qwen_image() -> Any:
    return QwenImagePipeline(**_qwen_image_parts(_bpe_tokenizer()))


def _qwen_image_edit(pipeline: Any = QwenImageEditPipeline) -> Any:
    tokenizer = _vision_tokenizer()
    ids = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{token}|>")
        for name, token in (("image", "image_pad"), ("video", "video_pad"))
    }
    # Edit-2511 tells the transformer that sources have no noise.
    parts = _qwen_image_parts(tokenizer, ids, zero_cond_t=pipeline is QwenImageEditPlusPipeline)
    return pipeline(**parts, processor=None)


def _vision_tokenizer() -> Any:
    return _bpe_tokenizer("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def _qwen_image_21() -> Any:
    tokenizer = _vision_tokenizer()
    kind: Any = Qwen3VLConfig
    text = {
        "vocab_size": len(tokenizer), "hidden_size": WIDTH, "intermediate_size": WIDTH,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_heads": 2,
        "out_hidden_size": WIDTH, "deepstack_visual_indexes": [0],
    }  # fmt: skip
    pipeline = QwenImage21Pipeline(
        scheduler=_scheduler(use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9),
        vae=_lively(
            AutoencoderKLQwenImage21(
                base_dim=8, decoder_base_dim=8, z_dim=LATENT, dim_mult=[1, 1, 1, 1, 1], num_res_blocks=1,
                latents_mean=[0.1, -0.2, 0.3, 0.0], latents_std=[1.5, 2.0, 0.7, 1.1],
            )
        ),
        text_encoder=_lively(
            Qwen3VLForConditionalGeneration(kind(text_config=text, vision_config=vision))
        ),
        processor=processor_of(Qwen3VLProcessor, tokenizer),
        transformer=_lively(
            QwenImage21Transformer2DModel(
                in_channels=LATENT, out_channels=LATENT, num_layers=2, attention_head_dim=16,
                num_attention_heads=2, context_in_dim=WIDTH, axes_dims_rope=(4, 6, 6),
            )
        ),
    )  # fmt: skip
    pipeline.register_modules(processor=None)  # `_save_processor` writes it
    return pipeline


def _qwen_image_parts(
    tokenizer: Any, ids: dict[str, int] | None = None, **transformer: Any
) -> dict[str, Any]:
    layers: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": WIDTH, "intermediate_size": WIDTH,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
    }  # fmt: skip
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": WIDTH,
    }
    config: Any = Qwen2_5_VLConfig
    return dict(
        scheduler=_scheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, max_image_seq_len=8192,
            shift_terminal=0.02,
        ),
        vae=_lively(
            AutoencoderKLQwenImage(
                base_dim=8, z_dim=LATENT, dim_mult=[1, 1], num_res_blocks=1, temperal_downsample=[False],
                latents_mean=[0.1, -0.2, 0.3, 0.0], latents_std=[1.5, 2.0, 0.7, 1.1],
            )
        ),
        text_encoder=_lively(
            Qwen2_5_VLForConditionalGeneration(
                config(text_config=layers, vision_config=vision, **(ids or {}))
            )
        ),
        tokenizer=tokenizer,
        transformer=_lively(
            QwenImageTransformer2DModel(
                patch_size=2, in_channels=4 * LATENT, out_channels=LATENT, num_layers=2,
                attention_head_dim=16, num_attention_heads=2, joint_attention_dim=WIDTH,
                axes_dims_rope=(4, 6, 6), **transformer,
            )
        ),
    )  # fmt: skip


def _stable_diffusion_3() -> Any:
    clip, t5 = _clip_tokenizer(), _t5_tokenizer()
    return StableDiffusion3Pipeline(
        transformer=_lively(
            SD3Transformer2DModel(
                sample_size=8, patch_size=2, in_channels=LATENT, num_layers=2, attention_head_dim=16,
                num_attention_heads=2, joint_attention_dim=WIDTH, caption_projection_dim=WIDTH,
                pooled_projection_dim=WIDTH, out_channels=LATENT, pos_embed_max_size=16,
                dual_attention_layers=(0,), qk_norm="rms_norm",
            )
        ),
        scheduler=_scheduler(shift=3.0),
        vae=_vae(),
        text_encoder=_clip(clip, CLIPTextModelWithProjection),
        tokenizer=clip,
        text_encoder_2=_clip(clip, CLIPTextModelWithProjection),
        tokenizer_2=clip,
        text_encoder_3=_t5(t5),
        tokenizer_3=t5,
    )  # fmt: skip


def _flux(pipeline: Any = FluxPipeline) -> Any:
    clip, t5 = _clip_tokenizer(), _t5_tokenizer()
    return pipeline(
        scheduler=_scheduler(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, shift=3.0),
        vae=_vae(),
        text_encoder=_clip(clip, CLIPTextModel),
        tokenizer=clip,
        text_encoder_2=_t5(t5),
        tokenizer_2=t5,
        transformer=_lively(
            FluxTransformer2DModel(
                patch_size=1, in_channels=4 * LATENT, num_layers=1, num_single_layers=2,
                attention_head_dim=16, num_attention_heads=2, joint_attention_dim=WIDTH,
                pooled_projection_dim=WIDTH // 2, guidance_embeds=True, axes_dims_rope=(4, 6, 6),
            )
        ),
    )  # fmt: skip


def _flux2_klein() -> Any:
    tokenizer = _bpe_tokenizer()
    kind: Any = AutoencoderKLFlux2  # its annotations are of tuples of four
    vae = _lively(
        kind(
            down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
            block_out_channels=(8, 8), latent_channels=LATENT, norm_num_groups=4, layers_per_block=1,
        )
    )  # fmt: skip
    vae.bn.running_mean.normal_(0, 0.3)
    vae.bn.running_var.uniform_(0.5, 2)
    return Flux2KleinPipeline(
        scheduler=_scheduler(use_dynamic_shifting=True, shift=3.0),
        vae=vae,
        text_encoder=_lively(Qwen3ForCausalLM(_qwen3(tokenizer, layers=28))),
        tokenizer=tokenizer,
        transformer=_lively(
            Flux2Transformer2DModel(
                in_channels=4 * LATENT, num_layers=1, num_single_layers=2, attention_head_dim=16,
                num_attention_heads=2, joint_attention_dim=3 * WIDTH, guidance_embeds=False,
                axes_dims_rope=(4, 4, 4, 4),
            )
        ),
    )  # fmt: skip


def _qwen3(tokenizer: Any, layers: int) -> Any:
    config: Any = Qwen3Config
    return config(
        vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16,
    )  # fmt: skip


def _z_image() -> Any:
    tokenizer = _bpe_tokenizer()
    return ZImagePipeline(
        scheduler=_scheduler(shift=3.0),
        vae=_vae(),
        text_encoder=_lively(Qwen3Model(_qwen3(tokenizer, layers=3))),
        tokenizer=tokenizer,
        transformer=_lively(
            ZImageTransformer2DModel(
                in_channels=LATENT, dim=WIDTH, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2,
                cap_feat_dim=WIDTH, axes_dims=[4, 6, 6], axes_lens=[512, 64, 64],
            )
        ),
    )  # fmt: skip


def _sana() -> Any:
    tokenizer = _bpe_tokenizer()
    encoder: Any = Gemma2Config
    vae: Any = AutoencoderDC  # its annotations are of tuples
    return SanaPipeline(
        tokenizer=tokenizer,
        text_encoder=_lively(
            Gemma2Model(
                encoder(
                    vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=WIDTH,
                    num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
                    query_pre_attn_scalar=16,
                )
            )
        ),
        vae=_lively(
            vae(
                latent_channels=LATENT, attention_head_dim=8,
                encoder_block_types=("ResBlock", "EfficientViTBlock", "EfficientViTBlock"),
                decoder_block_types=("ResBlock", "EfficientViTBlock", "EfficientViTBlock"),
                encoder_block_out_channels=(8, 8, 16), decoder_block_out_channels=(8, 8, 16),
                encoder_layers_per_block=(1, 1, 1), decoder_layers_per_block=(1, 1, 1),
                encoder_qkv_multiscales=((), (5,), (5,)), decoder_qkv_multiscales=((), (5,), (5,)),
                scaling_factor=0.41, downsample_block_type="Conv", upsample_block_type="interpolate",
            )
        ),
        # Of first order, as steps are here.
        scheduler=DPMSolverMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0, solver_order=1,
        ),
        transformer=_lively(
            SanaTransformer2DModel(
                in_channels=LATENT, out_channels=LATENT, num_attention_heads=2, attention_head_dim=16,
                num_layers=2, num_cross_attention_heads=2, cross_attention_head_dim=16,
                cross_attention_dim=WIDTH, caption_channels=WIDTH, sample_size=32,
            )
        ),
    )  # fmt: skip


def _hunyuan_video() -> Any:
    tokenizer = _bpe_tokenizer()
    kind: Any = Qwen2_5_VLTextConfig
    vae: Any = AutoencoderKLHunyuanVideo15
    t5: Any = T5Config
    spelling: Any = ByT5Tokenizer()
    return HunyuanVideo15Pipeline(
        text_encoder=_lively(
            Qwen2_5_VLTextModel(
                kind(
                    vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=WIDTH,
                    num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1,
                    rope_parameters={
                        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3],
                    },
                )
            )
        ),
        tokenizer=tokenizer,
        transformer=_lively(
            HunyuanVideo15Transformer3DModel(
                in_channels=2 * LATENT + 1, out_channels=LATENT, num_attention_heads=2, attention_head_dim=16,
                num_layers=2, num_refiner_layers=1, mlp_ratio=2.0, text_embed_dim=WIDTH,
                text_embed_2_dim=WIDTH // 2, image_embed_dim=WIDTH, rope_axes_dim=(4, 6, 6), task_type="t2v",
            )
        ),
        vae=_lively(
            vae(
                latent_channels=LATENT, block_out_channels=(8, 8, 8), layers_per_block=1,
                spatial_compression_ratio=4, temporal_compression_ratio=4,
            )
        ),
        scheduler=_scheduler(shift=5.0),
        text_encoder_2=_lively(
            T5EncoderModel(
                t5(
                    vocab_size=len(spelling), d_model=WIDTH // 2, d_kv=16, d_ff=WIDTH, num_layers=1,
                    num_heads=2,
                )
            )
        ),
        tokenizer_2=spelling,
        guider=ClassifierFreeGuidance(),
    )  # fmt: skip


def _wan(dense: bool = True) -> Any:
    """The 5B; or the A14B, with an earlier VAE and an expert for each of two ranges of noise."""
    tokenizer = _t5_tokenizer()
    kind: Any = UniPCMultistepScheduler  # the pipeline's annotation names another one than its models have
    # The 5B's VAE is residual, with patches of pixels.
    own: dict[str, Any] = {
        "dim_mult": [1, 1, 1], "temperal_downsample": [True, True], "is_residual": True, "in_channels": 12,
        "out_channels": 12, "patch_size": 2,
    }  # fmt: skip
    earlier: dict[str, Any] = {"dim_mult": [1, 1, 1, 1], "temperal_downsample": [False, True, True]}

    def transformer() -> Any:
        return _lively(
            WanTransformer3DModel(
                num_attention_heads=2, attention_head_dim=16, in_channels=LATENT, out_channels=LATENT,
                text_dim=WIDTH, freq_dim=32, ffn_dim=2 * WIDTH, num_layers=2, rope_max_seq_len=64,
            )
        )  # fmt: skip

    more: dict[str, Any] = {} if dense else {"transformer_2": transformer(), "boundary_ratio": 0.875}
    return WanPipeline(
        tokenizer=tokenizer,
        text_encoder=_t5(tokenizer, UMT5Config, UMT5EncoderModel),
        vae=_lively(
            AutoencoderKLWan(
                base_dim=8, z_dim=LATENT, num_res_blocks=1, latents_mean=[0.1, -0.2, 0.3, 0.0],
                latents_std=[1.5, 2.0, 0.7, 1.1], **(own if dense else earlier),
            )
        ),
        # Of first order and without a corrector, as steps are here.
        scheduler=kind(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5.0, solver_order=1,
            disable_corrector=list(range(100)),
        ),
        transformer=transformer(),
        expand_timesteps=dense,
        **more,
    )  # fmt: skip


TWO_EXPERTS = "wan2.2 A14B"
"""Not a family, but a further model of one."""

PIPELINES: dict[str, Callable[[], Any]] = {
    "qwen-image": _qwen_image,
    "qwen-image-2.1": _qwen_image_21,
    "qwen-image-edit": _qwen_image_edit,
    "qwen-image-edit-plus": partial(_qwen_image_edit, QwenImageEditPlusPipeline),
    "sd3.5": _stable_diffusion_3,
    "flux": _flux,
    "flux2-klein": _flux2_klein,
    "flux-kontext": partial(_flux, FluxKontextPipeline),
    "z-image": _z_image,
    "sana": _sana,
    "hunyuan-video-1.5": _hunyuan_video,
    "wan2.2": _wan,
}
