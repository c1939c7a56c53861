"""`generate` of transformers: eager's tokens and generator, few graphs, none after the second call, and caches updated in place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import torchvision_schemas
import treadle

torchvision_schemas.define_missing_schemas()
transformers = pytest.importorskip("transformers")

VOCABULARY = 100
WAYS: Mapping[str, dict[str, Any]] = {
    "dynamic cache": {"do_sample": False},
    "static cache": {"do_sample": False, "cache_implementation": "static", "disable_compile": True},
    "samples": {"do_sample": True, "top_k": 20},
    "beams": {"do_sample": False, "num_beams": 3},
}
TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "decoder_start_token_id": 1}


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=2, **TOKENS)
    )


def llama() -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **sizes, **TOKENS)
    )


def t5() -> Any:
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=VOCABULARY, **sizes, **TOKENS))


def ids(length: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(2, VOCABULARY, (1, length))}


MODELS: Mapping[str, tuple[Callable[[], Any], dict[str, torch.Tensor]]] = {
    "gpt2": (gpt2, ids(6)),
    "llama": (llama, ids(6)),
    "t5": (t5, ids(9)),
}


def tokens(generate: Callable[..., Any], inputs: dict[str, torch.Tensor], way: str, new: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    with torch.no_grad():
        found = generate(**inputs, **WAYS[way], min_new_tokens=new, max_new_tokens=new)
    return [found, torch.get_rng_state()]


CASES = [(name, way, "forward") for name in MODELS for way in WAYS]
CASES += [("gpt2", "static cache", "generate"), ("llama", "samples", "generate"), ("t5", "beams", "generate")]


@pytest.mark.parametrize(("name", "way", "part"), CASES)
def test_generation(name: str, way: str, part: str):
    build, inputs = MODELS[name]
    torch.manual_seed(0)
    model = build().eval()
    twin = copy.deepcopy(model)
    setattr(twin, part, treadle.compile(getattr(twin, part)))
    expected = tokens(model.generate, inputs, way, 8)
    graphs = []
    for _ in range(4):
        found = tokens(twin.generate, inputs, way, 8)
        assert all(map(torch.equal, found, expected))
        graphs.append(treadle.stats().graphs)
    assert graphs[1] == graphs[3]
    if part == "forward" and way in ("dynamic cache", "static cache"):
        assert graphs[3] <= 3 and not treadle.stats().breaks


def test_a_static_cache_is_written_where_it_is():
    """Neither a copy of the cache per step, nor another tensor in it."""
    torch.manual_seed(0)
    model = llama().eval()
    fast = treadle.compile(model.forward)

    def run(forward: Callable[..., Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        cache = transformers.StaticCache(config=model.config, max_cache_len=512)
        with torch.no_grad():
            logits = [forward(input_ids=ids(1)["input_ids"] * 0 + 5, past_key_values=cache).logits]
            places = [layer.keys for layer in cache.layers]
            logits += [
                forward(input_ids=torch.tensor([[token]]), past_key_values=cache).logits for token in (3, 9, 11, 4)
            ]
        assert all(layer.keys is place for layer, place in zip(cache.layers, places, strict=True))
        return logits, [memory for layer in cache.layers for memory in (layer.keys, layer.values)]

    expected = run(model.forward)
    for _ in range(2):
        torch.testing.assert_close(run(fast), expected)
    cache = transformers.StaticCache(config=model.config, max_cache_len=512)
    with torch.no_grad():
        for token in (5, 3, 9):
            fast(input_ids=torch.tensor([[token]]), past_key_values=cache)
        with torch.profiler.profile() as profile:
            fast(input_ids=torch.tensor([[7]]), past_key_values=cache)
    copies = [event.name for event in profile.events() if "copy" in event.name]
    assert copies == []
