"""The twelve models of the main job as named scenarios: how to build each one, and its inputs.

Each model's own library builds it from its config class, with random weights (fixed seed, eval mode) and the library's defaults,
attention implementation included (sdpa if the model has it). The transformers models are reduced in width and depth, so that one
eager forward on one thread takes some tens of milliseconds. The timm models have their library's sizes. A scenario is one scoring
pass and no generation, hence `use_cache=False`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import torchvision_schemas

SEED = 20260

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    """One model of the zoo: `build()` gives it in eval mode and float32, `inputs(batch)` its keyword arguments."""

    name: str
    library: str
    builder: Callable[[], torch.nn.Module]
    make_inputs: Callable[[int], Inputs]

    def build(self) -> torch.nn.Module:
        torchvision_schemas.define_missing_schemas()  # timm and transformers import torchvision where it is there
        torch.manual_seed(SEED)
        model = self.builder().eval()
        _randomise_constants(model)
        return model

    def inputs(self, batch: int = 1) -> Inputs:
        torch.manual_seed(SEED + batch)
        return self.make_inputs(batch)


def _randomise_constants(model: torch.nn.Module) -> None:
    """Give random values to tensors that the libraries initialise to a constant: zero heads, unit scales, trivial batch statistics.

    Such constants can make a model's output almost zero (mixer_s16_224, efficientnet_b0), so that every comparison passes.
    """
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not tensor.is_floating_point() or tensor.numel() < 2 or tensor.min() != tensor.max():
                continue
            if tensor.dim() > 1:
                tensor.normal_(std=tensor[0].numel() ** -0.5)
            elif name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            else:
                tensor.add_(torch.randn_like(tensor) * 0.1)


def _bert() -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(
        BertConfig(vocab_size=4000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    )


def _gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=4000,
            n_positions=256,
            n_embd=256,
            n_layer=4,
            n_head=4,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def _llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4000,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=2,
            max_position_embeddings=256,
            use_cache=False,
        )
    )


def _t5() -> torch.nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(vocab_size=4000, d_model=256, d_kv=64, d_ff=1024, num_layers=3, num_heads=4, use_cache=False)
    )


def _vit() -> torch.nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, image_size=224)
    )


def _timm(name: str) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        import timm

        return timm.create_model(name, pretrained=False)

    return build


def _tokens(length: int, vocabulary: int = 4000) -> Callable[[int], Inputs]:
    return lambda batch: {"input_ids": torch.randint(vocabulary, (batch, length))}


def _source_and_target(source: int, target: int, vocabulary: int = 4000) -> Callable[[int], Inputs]:
    return lambda batch: {
        "input_ids": torch.randint(vocabulary, (batch, source)),
        "decoder_input_ids": torch.randint(vocabulary, (batch, target)),
    }


def _image(argument: str, side: int) -> Callable[[int], Inputs]:
    return lambda batch: {argument: torch.randn(batch, 3, side, side)}


def _timm_scenario(name: str) -> Scenario:
    return Scenario(name, "timm", _timm(name), _image("x", 224))


SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("bert", "transformers", _bert, _tokens(128)),
        Scenario("gpt2", "transformers", _gpt2, _tokens(128)),
        Scenario("llama", "transformers", _llama, _tokens(128)),
        Scenario("t5", "transformers", _t5, _source_and_target(128, 64)),
        Scenario("vit", "transformers", _vit, _image("pixel_values", 224)),
        _timm_scenario("resnet18"),
        _timm_scenario("mobilenetv3_large_100"),
        _timm_scenario("efficientnet_b0"),
        _timm_scenario("convnext_atto"),
        _timm_scenario("vit_tiny_patch16_224"),
        _timm_scenario("mixer_s16_224"),
        _timm_scenario("swin_tiny_patch4_window7_224"),
    )
}


def tensors_of(result: Any) -> list[torch.Tensor]:
    """Every tensor in a model's result (tensor, tuple, dict or transformers' `ModelOutput`), in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, Mapping):
        return [tensor for value in result.values() for tensor in tensors_of(value)]
    if isinstance(result, (tuple, list)):
        return [tensor for value in result for tensor in tensors_of(value)]
    return []


def moved(inputs: Inputs, device: torch.device, dtype: torch.dtype | None = None) -> Inputs:
    """The same inputs on a device, floating-point tensors in that dtype."""
    return {
        name: value.to(device, dtype if value.is_floating_point() else None)
        if isinstance(value, torch.Tensor)
        else value
        for name, value in inputs.items()
    }


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """The model itself, with every probability of dropout set to 0."""
    for module in model.modules():
        for name in ("p", "dropout", "drop_prob", "dropout_prob", "attention_dropout", "dropout_rate"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def in_float64(inputs: Inputs) -> Inputs:
    """The same inputs with floating-point tensors widened, for the float64 reference run."""
    return {
        name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }
