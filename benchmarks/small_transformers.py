"""Small models of the architectures of transformers, with random weights, and inputs that they run on.

    model, inputs = build("glm4v_vision")

A config's sizes are made small by name; what `forward` needs is derived from its signature and from the config. Several sizes and several
shapes of inputs are tried until eager raises nothing. `PECULIAR` holds what no name tells.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from peculiar_transformers import PECULIAR

# Attributes of configs that make a model small, with the value they get where the config has them as an int.
SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "embedding_size": 32,
    "intermediate_size": 64,
    "d_ff": 64,
    "ffn_dim": 64,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "n_head": 4,
    "n_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "image_size": 64,
}
PARTS_OF_LAYERS = {
    "head_dim": 8,
    "qk_head_dim": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "n_routed_experts": 4,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
"""Heads and experts: small where the sizes above leave them too large, or do not fit them."""

FEW_LAYERS = {key: value for key, value in SMALL.items() if "layer" in key or key in ("vocab_size", "image_size")}
"""For configs whose sizes depend on each other."""

LAYERS_OF_EACH_KIND = SMALL | PARTS_OF_LAYERS | {key: 8 for key in FEW_LAYERS if "hidden_layers" in key}
"""For architectures whose first layers are of one kind."""

HEADS_OF_64 = SMALL | {
    "hidden_size": 256,
    "head_dim": 64,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
}
HEADS_OF_128 = HEADS_OF_64 | {"hidden_size": 512, "head_dim": 128}
"""For rotary embeddings whose parts have fixed sizes."""

PARTS_OF_MODELS = {
    "d_head": 8,
    "d_inner": 64,
    "num_queries": 20,
    "num_query_tokens": 4,
    "encoder_hidden_size": 32,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 99,
    "num_kv_shared_layers": 0,
    "conf_num_hidden_layers": 1,
    "context_size": 16,
    "num_codebooks": 4,
    "encoder_hash_byte_group_vocab": 101,
    "audio_bos_token_id": 2,
    "audio_pad_token_id": 3,
    "max_source_positions": 100,
}
"""What joins the parts of a model, and sizes that only some models have."""

SIZES = (
    SMALL,
    SMALL | PARTS_OF_LAYERS,
    HEADS_OF_64,
    HEADS_OF_128,
    FEW_LAYERS,
    FEW_LAYERS | PARTS_OF_LAYERS,
    SMALL | PARTS_OF_LAYERS | PARTS_OF_MODELS,
    PARTS_OF_LAYERS | HEADS_OF_128,
    LAYERS_OF_EACH_KIND,
    LAYERS_OF_EACH_KIND | PARTS_OF_MODELS,
    {},
)

WHERE_NONE = {
    "head_dim": 8,
    "vocab_size": 99,
    "pad_token_id": 1,
    "prediction_length": 4,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}
"""For attributes that a config has as None, and that its model needs as a number."""

MOST_PARAMETERS = 150_000_000

TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


def build(name: str) -> tuple[Any, dict[str, Any]]:
    """A small model and inputs that it runs on: sizes get less small, and inputs more, until eager raises nothing."""
    first: Exception | None = None
    for sizes, make, caches in itertools.product(SIZES, (_shrink, _made_small), (True, False)):
        try:
            model, config = _model(name, sizes, make)
            if not caches:
                model.config.use_cache = False
        except Exception as error:
            first = first or error
            continue
        for inputs in _inputs(name, model, config):
            try:
                torch.manual_seed(1)
                with torch.no_grad():
                    model(**inputs)
                return model, inputs
            except Exception as error:
                first = first or error
    raise first or ValueError("it has no inputs known here")


def _model(name: str, sizes: dict[str, int], make: Callable[[Any, dict[str, int]], Any]) -> tuple[Any, Any]:
    """(model, config) of these sizes."""
    import transformers
    from transformers import AutoConfig, AutoModel

    peculiar = PECULIAR.get(name)
    config = make(AutoConfig.for_model(name, **(peculiar.arguments if peculiar else {})), sizes)
    if peculiar:
        _set(config, peculiar.arguments)
    _fit_sections(config)
    new = getattr(transformers, peculiar.model) if peculiar and peculiar.model else AutoModel.from_config
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in new(config).parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count / 1e6:.0f} million parameters")
    return new(config).eval(), config


def _set(config: Any, attributes: Mapping[str, Any]) -> None:
    """Gives attributes to a config; a dict for one of its parts are attributes of that part."""
    for key, value in attributes.items():
        part = _attribute(config, key)
        if isinstance(value, dict) and hasattr(part, "to_dict"):
            _set(part, value)
        else:
            setattr(config, key, value)


def _fit_sections(config: Any) -> None:
    """Lets the sections of a rotary embedding of several axes (time, height, width) fill the heads, in the config and its parts."""
    rope = _attribute(config, "rope_parameters")
    if isinstance(rope, dict) and "mrope_section" in getattr(config, "ignore_keys_at_rope_validation", ()):
        size = _attribute(config, "head_dim") or config.hidden_size // config.num_attention_heads
        pairs = int(size * rope.get("partial_rotary_factor", 1.0)) // 2
        third, (first, second, last) = pairs // 3, rope.get("mrope_section") or (0, 1, 1)
        rest = pairs - 2 * third
        rope["mrope_section"] = [third, third, rest] if first == second != last else [rest, third, third]
    for part in _parts(config).values():
        _fit_sections(part)


def _shrink(config: Any, sizes: dict[str, int]) -> Any:
    """The config with small attributes, its parts included."""
    for key, value in _settings(config, sizes).items():
        with contextlib.suppress(AttributeError, NotImplementedError):  # a property that is computed from others
            setattr(config, key, value)
    for part in _parts(config).values():
        _shrink(part, sizes)
    return config


def _made_small(config: Any, sizes: dict[str, int]) -> Any:
    """A config made with small arguments, its parts included: what a config computes from its arguments is computed from these."""
    parts = {name: _made_small(part, sizes).to_dict() for name, part in _parts(config).items()}
    return type(config)(**_settings(config, sizes), **parts)


def _settings(config: Any, sizes: dict[str, int]) -> dict[str, int]:
    wanted = sizes | dict.fromkeys(TOKENS, 1)
    found = {key: value for key, value in wanted.items() if type(_attribute(config, key)) is int}
    return found | {key: value for key, value in WHERE_NONE.items() if _is_none(config, key)}


def _is_none(config: Any, name: str) -> bool:
    return _attribute(config, name, 0) is None


def _attribute(config: Any, name: str, default: Any = None) -> Any:
    """An attribute of a config; the default where it has none, or refuses to say one for all layers."""
    try:
        return getattr(config, name, default)
    except (ValueError, RuntimeError):
        return default


def _parts(config: Any) -> dict[str, Any]:
    return {name: part for name, part in vars(config).items() if hasattr(part, "to_dict")}


def _inputs(name: str, model: Any, config: Any) -> Iterator[dict[str, Any]]:
    """Sets of inputs to try: the main one, then all that the signature names and that are known here, in several shapes."""
    peculiar = PECULIAR.get(name)
    if peculiar and peculiar.inputs:
        yield peculiar.inputs(config)
        return
    accepted = inspect.signature(model.forward).parameters
    needed = [name for name, parameter in accepted.items() if parameter.default is inspect.Parameter.empty]
    needed = [name for name in needed if accepted[name].kind is not inspect.Parameter.VAR_KEYWORD]
    for length, layout in itertools.product((10, 32), range(LAYOUTS)):
        makers = _makers(config, length, layout)
        main = [name for name in (model.main_input_name,) if name in makers]
        with_decoder = [*main, "decoder_input_ids"] if config.is_encoder_decoder and main == ["input_ids"] else main
        named = [name for name in makers if name in accepted and name != "inputs_embeds"]
        without_mask = [name for name in named if name != "attention_mask"]
        with_texts = [name for name in (*needed, *TEXTS) if name in accepted and name in makers]
        with_masks = [name for name in (*main, *needed, *MASKS) if name in accepted]
        if any(_is_grid(name) for name in needed):
            makers.update(_makers_of_patches(config, layout))
        for names in (with_decoder, needed, with_texts, with_masks, named, without_mask):
            if names and all(name in makers for name in names):
                yield {name: makers[name]() for name in names}


LAYOUTS = 4
TEXTS = ("input_ids", "decoder_input_ids", "encoder_hidden_states")
MASKS = ("input_features_mask", "audio_mel_mask", "padding_mask")


def _is_grid(name: str) -> bool:
    return name.endswith("grid_thw")


def _makers_of_patches(config: Any, layout: int) -> dict[str, Callable[[], Any]]:
    """Inputs of vision towers that take the patches of two images as one sequence, and how many patches each has along each axis."""
    patch = _attribute(config, "patch_size", 14)
    channels = _attribute(config, "in_channels") or _attribute(config, "num_channels") or 3
    times = _attribute(config, "temporal_patch_size", 1)
    merge = _attribute(config, "spatial_merge_size", 1)
    shape = [
        (96, channels * times * patch**2),
        (96, channels, patch, patch),
        (96, patch * merge, patch * merge, channels),
        (96, channels, times, patch, patch),
    ][layout]
    grid = torch.tensor([[1, 8, 8], [1, 4, 8]])
    return {
        "pixel_values": lambda: torch.randn(shape),
        "hidden_states": lambda: torch.randn(shape),
        "grid_thw": lambda: grid,
        "image_grid_thw": lambda: grid,
    }


def _makers(config: Any, length: int, layout: int) -> dict[str, Callable[[], Any]]:
    """A function for each known input of a model, for texts of this length and one of the layouts of images and sounds."""
    ids = torch.randint(3, 90, (2, length))
    return _makers_of_texts(config, ids) | _makers_of_media(config, layout) | _makers_of_series(config, length)


def _makers_of_texts(config: Any, ids: Any) -> dict[str, Callable[[], Any]]:
    length = ids.shape[1]
    hidden = getattr(config, "hidden_size", 32)
    return {
        "input_ids": lambda: ids,
        "attention_mask": lambda: torch.ones_like(ids),
        "qformer_input_ids": lambda: ids,
        "bbox": lambda: torch.randint(1, 9, (2, length, 4)).sort(-1).values,
        "decoder_input_ids": lambda: ids[:, :5],
        "inputs_embeds": lambda: torch.randn(2, length, hidden),
        "query_embeds": lambda: torch.randn(2, length, hidden),
        "encoder_hidden_states": lambda: torch.randn(2, length, getattr(config, "encoder_hidden_size", hidden)),
    }


def _makers_of_media(config: Any, layout: int) -> dict[str, Callable[[], Any]]:
    vision = next((part for part in _parts(config).values() if hasattr(part, "image_size")), config)
    size = _attribute(vision, "image_size", 64)
    side = size if isinstance(size, int) else 64
    channels = _attribute(vision, "num_channels", 3)
    audio = next((part for part in _parts(config).values() if hasattr(part, "num_mel_bins")), config)
    bins = (
        _first_of(audio, ("num_mel_bins", "input_feat_size", "input_dim")) or _first_of(config, ("feature_size",)) or 80
    )
    positions = _attribute(config, "max_source_positions")
    frames = _attribute(audio, "max_length", 1024)
    sounds = [(2, 4000), (2, 1, 4000), (2, 1, 16000), (2, frames, bins)][layout]
    times = [2 * positions if positions else 200, 200, 1024, 200][layout]
    features = [(2, bins, times), (2, times, bins), (2, 1, times, bins), (2, times, 128)][layout]
    images = [(2, channels, side, side), (2, 1, channels, side, side), (2, 2, channels, side, side)][layout % 3]
    patch = _attribute(vision, "patch_size", 14)
    patch_length = channels * _attribute(vision, "temporal_patch_size", 1) * (patch if type(patch) is int else 14) ** 2
    return {
        "pixel_values": lambda: torch.randn(images),
        "pixel_values_videos": lambda: torch.randn(2, 16, channels, side, side),
        "input_values": lambda: torch.randn(sounds),
        "input_features": lambda: torch.randn(features),
        "input_features_mask": lambda: torch.ones(2, times, dtype=torch.long),
        "audio_mel": lambda: torch.randn(features),
        "audio_mel_mask": lambda: torch.zeros(2, times, dtype=torch.bool),
        "hidden_states": lambda: torch.randn(64, patch_length),
        "grid_thw": lambda: torch.tensor([[1, 8, 8]]),
        "is_longer": lambda: torch.zeros(2, 1, dtype=torch.bool),
    }


def _first_of(config: Any, names: tuple[str, ...]) -> int | None:
    """The first of these attributes of a config that is not None or 0."""
    return next(filter(None, (_attribute(config, name) for name in names)), None)


def _makers_of_series(config: Any, length: int) -> dict[str, Callable[[], Any]]:
    past = (getattr(config, "context_length", None) or length) + max(getattr(config, "lags_sequence", None) or [0])
    return {
        "past_values": lambda: torch.randn(2, past),
        "past_time_features": lambda: torch.randn(2, past, config.num_time_features),
        "past_observed_mask": lambda: torch.ones(2, past),
        "future_values": lambda: torch.randn(2, config.prediction_length),
        "future_time_features": lambda: torch.randn(2, config.prediction_length, config.num_time_features),
    }
