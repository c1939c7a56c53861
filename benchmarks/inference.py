"""Inference on the CPU against torch.compile with frozen weights, in bfloat16, of full-size models, and of single decoding steps.

    python benchmarks/inference.py                                  everything (about 40 minutes), to benchmarks/results/inference.json
    python benchmarks/inference.py --parts full decode              some parts
    python benchmarks/inference.py --parts float32 --models bert    some models
    python benchmarks/inference.py --threads 2                      on two threads instead of one, kept beside the figures of one

float32, bfloat16: the twelve models of `benchmarks/models.py`; full: BERT-base, GPT-2, Llama-160M and ViT-B at batch 1, in float32; decode:
one token behind 128 others of GPT-2 and Llama-160M. Variants: eager, torch.compile, torch.compile with `freezing`, treadle. All variants
of a row are compiled in one process, compared with eager and timed interleaved (medians). Weights are random. The file keeps what an
earlier run has measured of other parts. Threads need a machine without other work: each waits for the last one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import torch  # noqa: E402

import compare  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
import torchvision_schemas  # noqa: E402
import zoo  # noqa: E402
from markdown_table import markdown, times  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "inference.json"
VARIANTS = ("eager", "torch.compile", "torch.compile freezing", "treadle")
PARTS = ("float32", "bfloat16", "full", "decode")
SECONDS = 8.0  # of calls, for all variants of a row together
CONTEXT = 128  # tokens
TIMEOUT = 600.0  # seconds of a row

Work = tuple[Callable[..., Any], dict[str, Any]]


# ------------------------------------------------------------------------------------------------ models


def _bert_base() -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig())


def _gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config())


def _llama_160m() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=32000, max_position_embeddings=2048, **sizes))


def _vit_base() -> torch.nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig())


def _tokens(count: int) -> dict[str, Any]:
    return {"input_ids": torch.randint(4000, (1, count))}


FULL: Mapping[str, tuple[Callable[[], torch.nn.Module], Callable[[], dict[str, Any]]]] = {
    "BERT-base": (_bert_base, partial(_tokens, CONTEXT)),
    "GPT-2": (_gpt2, partial(_tokens, CONTEXT)),
    "Llama-160M": (_llama_160m, partial(_tokens, CONTEXT)),
    "ViT-B/16": (_vit_base, lambda: {"pixel_values": torch.randn(1, 3, 224, 224)}),
}
DECODERS: Mapping[str, Callable[[], torch.nn.Module]] = {"GPT-2": _gpt2, "Llama-160M": _llama_160m}


class _Decoder(torch.nn.Module):
    """One step behind a context: every call begins with the same keys and values, as a step of `generate` does with a dynamic cache."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        from transformers import DynamicCache

        self.model, self.cache_of = model, DynamicCache
        with torch.no_grad():
            cache = model(**_tokens(CONTEXT), use_cache=True).past_key_values
        self.states = [(layer.keys, layer.values) for layer in cache.layers]

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        return self.model(token, past_key_values=self.cache_of(self.states), use_cache=True).logits


def _work(part: str, name: str) -> Work:
    torchvision_schemas.define_missing_schemas()  # transformers import torchvision where it is there
    torch.manual_seed(0)
    if part in ("float32", "bfloat16"):
        scenario = zoo.SCENARIOS[name]
        dtype = getattr(torch, part)
        inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in scenario.inputs().items()}
        return scenario.build().to(dtype), inputs
    if part == "full":
        build, inputs_of = FULL[name]
        return build().eval(), inputs_of()
    decoder = _Decoder(DECODERS[name]().eval())
    return decoder, {"token": torch.tensor([[7]])}


def rows_of(parts: Sequence[str], models: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    names = {"float32": zoo.SCENARIOS, "bfloat16": zoo.SCENARIOS, "full": FULL, "decode": DECODERS}
    for part in parts:
        yield from ((part, name) for name in names[part] if models is None or name in models)


# ------------------------------------------------------------------------------------------------ one row, in a process of its own


def _frozen(model: torch.nn.Module) -> Callable[..., Any]:
    return torch.compile(model, options={"freezing": True})


_COMPILERS: Mapping[str, Callable[..., Any]] = {**measure.COMPILERS, "torch.compile freezing": _frozen}


def _difference(result: Any, eager: Any) -> float:
    """The largest difference, over the largest magnitude of eager's."""
    pairs = zip(torch.utils._pytree.tree_leaves(result), torch.utils._pytree.tree_leaves(eager), strict=True)
    tensors = [(a.double(), b.double()) for a, b in pairs if isinstance(b, torch.Tensor)]
    return max([((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item() for a, b in tensors])


@torch.no_grad()
def figures(part: str, name: str, variants: Sequence[str], threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    work, inputs = _work(part, name)
    expected = work(**inputs)
    calls, found = {}, {}
    for variant in variants:
        compiled = _COMPILERS[variant](work)
        for _ in range(3):
            result = compiled(**inputs)
        calls[variant] = partial(compiled, **inputs)
        found[variant] = {"difference": _difference(result, expected)}
    for variant, seconds in measure.interleaved_medians(calls, SECONDS, 5).items():
        found[variant]["seconds"] = seconds
    return {"part": part, "name": name, "threads": torch.get_num_threads(), "variants": found}


# ------------------------------------------------------------------------------------------------ all rows


def ratio(row: Mapping[str, Any], other: str) -> float | None:
    """How many times faster treadle is than another variant."""
    found = row["variants"]
    return found[other]["seconds"] / found["treadle"]["seconds"] if other in found and "treadle" in found else None


def label(part: str, threads: int) -> str:
    """The key of a part's rows in the file."""
    return part if threads == 1 else f"{part}, {threads} threads"


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of the parts' geometric means."""
    lines = []
    for part in PARTS:
        mine = [row for row in rows if row["part"] == part and "variants" in row]
        ratios = [[r for row in mine if (r := ratio(row, other)) is not None] for other in VARIANTS[:-1]]
        if mine:
            cells = [f"{times(compare.geometric_mean(r))} ({min(r):.2f})" if r else "–" for r in ratios]
            lines.append([part, str(len(mine)), *cells])
    return markdown(["times faster (lowest)", "models", *VARIANTS[:-1]], lines)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", nargs="+", metavar="NAME")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if options.row:
        part, name = options.row
        print(json.dumps(figures(part, name, options.variants, options.threads)))
        return 0
    run = {"command": " ".join(["python benchmarks/inference.py", *arguments]), "machine": machine.describe()}
    parts: dict[str, Any] = json.loads(options.output.read_text("utf-8")) if options.output.exists() else {}
    rows: list[dict[str, Any]] = []
    for part, name in rows_of(options.parts, options.models):
        print(f"{part}: {name}", file=sys.stderr, flush=True)
        arguments_of_row = ["--row", part, name, "--variants", *options.variants, "--threads", str(options.threads)]
        with tempfile.TemporaryDirectory(prefix="treadle-inference-") as caches:
            row, error = compare.run_worker(arguments_of_row, Path(caches), TIMEOUT, Path(__file__))
        rows.append(dict(row) if row is not None else {"part": part, "name": name, "error": error})
        parts[label(part, options.threads)] = {**run, "rows": [row for row in rows if row["part"] == part]}
        options.output.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    print(summary(rows))
    for row in rows:
        if "error" in row:
            print(f"{row['part']} {row['name']}: {row['error']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
