"""Small versions of the zoo's twelve models, one of each architecture: one layer, or one of a kind, and images of 32 pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

torchvision_schemas = pytest.importorskip("torchvision_schemas")
torchvision_schemas.define_missing_schemas()  # timm and transformers import torchvision where it is there
transformers = pytest.importorskip("transformers")
timm = pytest.importorskip("timm")

WORDS = 60
TEXT = {"vocab_size": WORDS, "use_cache": False}


def _bert() -> Any:
    config = transformers.BertConfig(
        **TEXT, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    return transformers.BertModel(config)


def _gpt2() -> Any:
    sizes = {"n_positions": 32, "n_embd": 32, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**TEXT, **sizes))


def _llama() -> Any:
    config = transformers.LlamaConfig(
        **TEXT,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    return transformers.LlamaForCausalLM(config)


def _t5() -> Any:
    config = transformers.T5Config(**TEXT, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2)
    return transformers.T5ForConditionalGeneration(config)


def _vit() -> Any:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
    )
    return transformers.ViTForImageClassification(config)


def _timm(name: str, **sizes: Any) -> Callable[[], Any]:
    return lambda: timm.create_model(name, pretrained=False, num_classes=10, **sizes)


def _mixer() -> Any:
    return timm.models.MlpMixer(img_size=32, num_blocks=1, embed_dim=32, num_classes=10)


def _swin() -> Any:
    return timm.models.SwinTransformer(
        img_size=32, window_size=2, embed_dim=12, depths=(2,), num_heads=(2,), num_classes=10
    )


def _tokens() -> dict[str, Any]:
    return {"input_ids": torch.randint(WORDS, (2, 9))}


def _two_texts() -> dict[str, Any]:
    return {"input_ids": torch.randint(WORDS, (2, 9)), "decoder_input_ids": torch.randint(WORDS, (2, 5))}


def _image(argument: str, side: int = 32) -> Callable[[], dict[str, Any]]:
    return lambda: {argument: torch.randn(2, 3, side, side)}


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "bert": (_bert, _tokens),
    "gpt2": (_gpt2, _tokens),
    "llama": (_llama, _tokens),
    "t5": (_t5, _two_texts),
    "vit": (_vit, _image("pixel_values")),
    "resnet18": (_timm("resnet18"), _image("x")),
    "mobilenetv3": (_timm("mobilenetv3_small_050"), _image("x")),
    "efficientnet": (_timm("test_efficientnet"), _image("x")),
    "convnext": (_timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)), _image("x")),
    "vit_tiny": (_timm("vit_tiny_patch16_224", img_size=32, depth=1, embed_dim=24), _image("x")),
    "mixer": (_mixer, _image("x")),
    "swin": (_swin, _image("x")),
}


def build(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model = make().eval()
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.numel() > 1 and tensor.min() == tensor.max():  # zero heads and unit scales would hide errors
                tensor.add_(torch.randn_like(tensor) * 0.1)
    return model, inputs()
