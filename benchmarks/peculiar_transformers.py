"""Architectures of transformers of which neither the config nor the signature of `forward` tells what a small model needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Peculiar:
    """Arguments of the config, its parts as dicts, and what makes the inputs for a config, if they are peculiar.

    `model` names the class of transformers that runs on these inputs, where `AutoModel` knows none or one without `forward`.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: Callable[[Any], dict[str, Any]] | None = None
    model: str | None = None


def _ids(length: int = 10, images: int = 0, image: int = 98) -> torch.Tensor:
    """Two texts, with so many tokens in front that stand for an image."""
    ids = torch.randint(3, 90, (2, length))
    ids[:, :images] = image
    return ids


def _trajectory(config: Any) -> dict[str, Any]:
    return {
        "states": torch.randn(2, 6, config.state_dim),
        "actions": torch.randn(2, 6, config.act_dim),
        "rewards": torch.randn(2, 6, 1),
        "returns_to_go": torch.randn(2, 6, 1),
        "timesteps": torch.arange(6).expand(2, 6),
        "attention_mask": torch.ones(2, 6, dtype=torch.long),
    }


def _series(config: Any) -> dict[str, Any]:
    return {"past_values": torch.randn(2, config.context_length, config.num_input_channels)}


def _images_and_text(images: tuple[int, ...], **others: torch.Tensor) -> Callable[[Any], dict[str, Any]]:
    return lambda config: {"pixel_values": torch.randn(images), "input_ids": _ids(), **others}


def _patches_with_places(config: Any) -> dict[str, Any]:
    places = torch.stack(torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij"), -1).reshape(1, 36, 2)
    return {
        "pixel_values": torch.randn(2, 36, 3 * config.patch_size**2),
        "pixel_position_ids": places.expand(2, 36, 2),
    }


def _sounds_and_text(config: Any) -> dict[str, Any]:
    return {
        "input_ids": _ids(),
        "attention_mask": torch.ones(2, 10, dtype=torch.long),
        "input_features": torch.randn(2, 1, 1024, config.audio_config.num_mel_bins),
        "is_longer": torch.zeros(2, 1, dtype=torch.bool),
    }


def _queried_videos(config: Any) -> dict[str, Any]:
    side = config.vision_config.image_size
    return {
        "pixel_values": torch.randn(2, 3, 3, side, side),
        "qformer_input_ids": _ids(),
        "input_ids": _ids(20, images=3 * config.num_query_tokens),
        "attention_mask": torch.ones(2, 20, dtype=torch.long),
    }


def _queried_images(config: Any) -> dict[str, Any]:
    """Images that a Q-Former sums up as tokens of the text."""
    side = config.vision_config.image_size
    return {
        "pixel_values": torch.randn(2, 3, side, side),
        "input_ids": _ids(12, images=config.num_query_tokens),
        "attention_mask": torch.ones(2, 12, dtype=torch.long),
    }


def _video(frames: int, side: int = 64) -> Callable[[Any], dict[str, Any]]:
    return lambda config: {"pixel_values": torch.randn(2, frames, 3, side, side)}


def _patches_of_two_images(config: Any) -> dict[str, Any]:
    """24 patches of an image of 4 x 6, and 20 of one of 4 x 5 with four of padding."""
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[1, 20:] = 0
    return {
        "pixel_values": torch.randn(2, 24, 3 * _patch_size(config) ** 2),
        "pixel_attention_mask": mask,
        "spatial_shapes": torch.tensor([[4, 6], [4, 5]]),
    }


def _patch_size(config: Any) -> int:
    return getattr(config, "vision_config", config).patch_size


def _patches_in_a_row(config: Any) -> dict[str, Any]:
    """The patches of two images as one sequence."""
    shape = (96, 3 * getattr(config, "patch_temporal", 1) * config.patch_size**2)
    return {"pixel_values": torch.randn(shape), "grid_thw": torch.tensor([[1, 8, 8], [1, 4, 8]])}


def _patches_side_by_side(config: Any) -> dict[str, Any]:
    """The patches of two images of 4 x 4 and 4 x 8 in one long row of pixels."""
    patch = config.patch_size
    return {
        "pixel_values": torch.randn(1, 3, patch, 48 * patch),
        "target_sizes": torch.tensor([[4, 4], [4, 8]], dtype=torch.int32),
    }


def _image_with_prompt(config: Any) -> dict[str, Any]:
    height, width = config.image_size
    half = (2, 3, height // 2, width)
    return {
        "pixel_values": torch.randn(half),
        "prompt_pixel_values": torch.randn(half),
        "prompt_masks": torch.randn(half),
    }


def _regions_and_text(config: Any) -> dict[str, Any]:
    return {
        "input_ids": _ids(),
        "visual_feats": torch.randn(2, 6, config.visual_feat_dim),
        "visual_pos": torch.rand(2, 6, config.visual_pos_dim),
    }


def _padded_series(config: Any) -> dict[str, Any]:
    return {
        "past_values": torch.randn(2, config.context_length),
        "past_values_padding": torch.zeros(2, config.context_length),
        "freq": torch.zeros(2, 1, dtype=torch.long),
    }


SMALL_VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
VIT = SMALL_VISION | {"model_type": "dinov2", "image_size": 32, "patch_size": 8, "apply_layernorm": True}
QFORMER = {
    "image_token_index": 98,
    "num_query_tokens": 4,
    "vision_config": SMALL_VISION,
    "qformer_config": {"encoder_hidden_size": 32},
}
TWO_LAYERS_OF_ATTENTION = {"num_hidden_layers": 2, "layer_types": ["window_attention", "full_attention"]}
IMAGE_TOKENS = {"<image>": 98, "<|extra_200|>": 97} | {
    f"IMGIMG{letter}Z": 60 + i for i, letter in enumerate("ABCDEFGHI")
}

PECULIAR: Mapping[str, Peculiar] = {
    "clap": Peculiar(inputs=_sounds_and_text),
    "instructblipvideo": Peculiar(QFORMER | {"video_token_index": 98}, _queried_videos),
    "blt": Peculiar({"use_cache": False, "encoder_hash_byte_group_vocab": 101}),
    "d_fine": Peculiar({"num_queries": 20}),
    "deimv2": Peculiar({"num_queries": 20}),
    "grounding-dino": Peculiar({"num_queries": 20}),
    "mm-grounding-dino": Peculiar({"num_queries": 20}),
    "rt_detr": Peculiar({"num_queries": 20}),
    "rt_detr_v2": Peculiar({"num_queries": 20}),
    "pp_doclayout_v4": Peculiar({"num_queries": 20}),
    "mamba2": Peculiar({"num_heads": 8, "head_dim": 8, "hidden_size": 32, "state_size": 16, "n_groups": 1}),
    "mgp-str": Peculiar(inputs=lambda config: {"pixel_values": torch.randn(2, 3, 32, 128)}),
    "moonshine": Peculiar(
        inputs=lambda config: {"input_values": torch.randn(2, 4000), "decoder_input_ids": _ids(5)},
    ),
    "patchtsmixer": Peculiar(inputs=_series),
    "patchtst": Peculiar(inputs=_series),
    "diffusion_gemma": Peculiar({"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}}),
    "ernie4_5_vl_moe": Peculiar(
        {"text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [22, 22, 20]}}}
    ),
    "fun_asr_nano_encoder": Peculiar(
        inputs=lambda config: {
            "input_features": torch.randn(2, 50, 560),
            "input_features_mask": torch.ones(2, 50, dtype=torch.long),
        }
    ),
    "blip-2": Peculiar(QFORMER, _queried_images),
    "instructblip": Peculiar(QFORMER, lambda config: {**_queried_images(config), "qformer_input_ids": _ids()}),
    "chameleon": Peculiar({"vocabulary_map": IMAGE_TOKENS}),
    "cohere_compass": Peculiar(
        {
            "text_config": {
                "num_hidden_layers": 2,
                "layer_types": ["full_attention"] * 2,
                "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}},
            }
        }
    ),
    "cohere_compass_text": Peculiar(
        {
            "num_hidden_layers": 2,
            "layer_types": ["full_attention"] * 2,
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}},
        }
    ),
    "dbrx": Peculiar({"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0}}),
    "decision_transformer": Peculiar(inputs=_trajectory),
    "deepseek_ocr2": Peculiar({"text_config": {"num_hidden_layers": 2, "mlp_layer_types": ["dense", "sparse"]}}),
    "depth_pro": Peculiar(
        {
            "patch_size": 32,
            "image_model_config": VIT,
            "patch_model_config": VIT,
            "fov_model_config": VIT,
            "intermediate_hook_ids": (1, 0),
        },
        lambda config: {"pixel_values": torch.randn(1, 3, 128, 128)},
    ),
    "dia": Peculiar(
        {"decoder_config": {"cross_hidden_size": 32}},
        inputs=lambda config: {
            "input_ids": _ids(),
            "decoder_input_ids": torch.randint(3, 90, (2, 5, config.decoder_config.num_channels)),
        },
    ),
    "edgetam": Peculiar({"vision_config": {"backbone_channel_list": [1024, 512, 256, 64]}}),
    "edgetam_vision_model": Peculiar({"backbone_channel_list": [1024, 512, 256, 64]}),
    "emu3": Peculiar({"vocabulary_map": IMAGE_TOKENS}),
    "funnel": Peculiar({"block_sizes": (1, 1, 1), "block_repeats": [1, 1, 1], "architectures": ["FunnelModel"]}),
    "gemma4_vision": Peculiar(inputs=_patches_with_places),
    "granite4_vision": Peculiar({"deepstack_layer_map": [], "spatial_target_layers": [], "downsample_rate": "1/2"}),
    "granite_speech5_ctc": Peculiar(inputs=lambda config: {"input_features": torch.randn(2, 64, 320)}),
    "granite_speech5_encoder": Peculiar(inputs=lambda config: {"input_features": torch.randn(2, 64, 320)}),
    "hiera": Peculiar({"depths": (1, 1, 2, 1)}, lambda config: {"pixel_values": torch.randn(1, 3, 224, 224)}),
    "idefics": Peculiar(
        {},
        lambda config: {
            "pixel_values": torch.randn(2, 1, 3, config.vision_config.image_size, config.vision_config.image_size),
            "input_ids": _ids(),
            "image_attention_mask": torch.ones(2, 10, 1, dtype=torch.long),
        },
    ),
    "kosmos-2": Peculiar(
        {
            "latent_query_num": 4,
            "text_config": {"embed_dim": 32, "layers": 2, "attention_heads": 4, "ffn_dim": 64},
            "vision_config": SMALL_VISION | {"image_size": 28},
        },
        lambda config: {
            "pixel_values": torch.randn(2, 3, 28, 28),
            "input_ids": _ids(),
            "image_embeds_position_mask": torch.arange(10).expand(2, 10) < 4,
        },
    ),
    "kyutai_speech_to_text": Peculiar(
        {"pad_token_id": 3, "audio_pad_token_id": 3},
        lambda config: {"input_ids": torch.randint(3, 90, (2, 10, config.num_codebooks + 1))},
    ),
    "lfm2_moe": Peculiar({"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}),
    "videomae": Peculiar({"num_frames": 4}, _video(4)),
    "vivit": Peculiar({"num_frames": 4}, _video(4)),
    "siglip2": Peculiar({}, lambda config: {**_patches_of_two_images(config), "input_ids": _ids()}),
    "siglip2_vision_model": Peculiar({}, _patches_of_two_images),
    "xclip": Peculiar(
        {"vision_config": {"num_frames": 4, "patch_size": 16}, "text_config": {"eos_token_id": 2}},
        lambda config: {"pixel_values": torch.randn(2, 4, 3, 64, 64), "input_ids": _ids()},
    ),
    "video_llama_3_vision": Peculiar(
        {}, lambda config: {**_patches_in_a_row(config), "merge_sizes": torch.tensor([2, 2])}
    ),
    "muse_glimmer_vision": Peculiar(TWO_LAYERS_OF_ATTENTION, _patches_in_a_row),
    "muse_spark_vision": Peculiar(TWO_LAYERS_OF_ATTENTION, _patches_in_a_row),
    "muse_spark_audio": Peculiar(
        {"hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1], "out_hidden_size": 64},
        lambda config: {"input_values": torch.randn(2, 1920 * 3)},
    ),
    "seggpt": Peculiar(
        {
            "image_size": [64, 32],
            "pretrain_image_size": 32,
            "mlp_dim": 64,
            "intermediate_hidden_state_indices": [0, 1],
            "merge_index": 0,
        },
        _image_with_prompt,
    ),
    "lxmert": Peculiar(
        {
            "num_hidden_layers": {"vision": 2, "cross_encoder": 2, "language": 2},
            "l_layers": 2,
            "x_layers": 2,
            "r_layers": 2,
        },
        _regions_and_text,
    ),
    "timesfm": Peculiar({}, _padded_series),
    "wav2vec2-bert": Peculiar(
        {}, lambda config: {"input_features": torch.randn(2, 50, config.feature_projection_input_dim)}
    ),
    "speecht5": Peculiar(
        {},
        lambda config: {"input_values": torch.randn(2, 4000), "decoder_input_ids": _ids(5)},
        model="SpeechT5ForSpeechToText",
    ),
    "xmod": Peculiar({"default_language": "en_XX"}),
    "mimi_decoder": Peculiar({}, lambda config: {"latents": torch.randn(2, config.hidden_size, 10)}),
    "pocket_tts_audio_tokenizer_decoder": Peculiar(
        {}, lambda config: {"latents": torch.randn(2, config.hidden_size, 10)}
    ),
    "minicpm_ocr_vision": Peculiar(SMALL_VISION | {"image_size": 64, "insert_layer_id": 0}, _patches_side_by_side),
    "minicpmv4_7_vision": Peculiar(SMALL_VISION | {"image_size": 64, "insert_layer_id": 0}, _patches_side_by_side),
    "muse_glimmer_assistant": Peculiar(
        {"num_hidden_layers": 2, "layer_types": ["sliding_attention"] * 2, "target_layer_ids": [0, 1]},
        lambda config: {
            "noise_embeds": torch.randn(2, 16, config.hidden_size),
            "context_hidden_states": torch.randn(2, 10, 2 * config.hidden_size),
        },
    ),
    "t5gemma2_encoder": Peculiar({"text_config": {"dropout_rate": 0.0}}),
    "moonshine_streaming": Peculiar(
        {"num_key_value_heads": 4}, lambda config: {"input_values": torch.randn(2, 4000), "decoder_input_ids": _ids(5)}
    ),
    "voxtral_realtime": Peculiar(
        {},
        lambda config: {"input_ids": _ids(10), "input_features": torch.randn(2, config.audio_config.num_mel_bins, 80)},
    ),
    "gemma3n_vision": Peculiar({"architecture": "resnet18"}),
    "perceiver": Peculiar(
        {"num_latents": 8, "d_latents": 64, "num_self_attends_per_block": 2},
        lambda config: {"inputs": torch.randn(2, 20, config.d_model)},
    ),
    "nemotron": Peculiar({"num_key_value_heads": 2}),
    "zamba2": Peculiar(
        {
            "layers_block_type": ["linear_attention", "hybrid"],
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "n_mamba_heads": 4,
            "mamba_headdim": 16,
            "attention_hidden_size": 64,
            "attention_head_dim": 16,
        }
    ),
    "timm_backbone": Peculiar({"backbone": "resnet18", "use_pretrained_backbone": False}),
    "musicgen": Peculiar(
        {},
        lambda config: {"input_ids": _ids(), "decoder_input_ids": torch.randint(3, 90, (8, 5))},
        model="MusicgenForConditionalGeneration",
    ),
}
