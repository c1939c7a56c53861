"""`generate` of transformers under compilers: the tokens, graphs, breaks, recompiles, and time per token.

    python benchmarks/generation.py                                          all cases, to benchmarks/results/generation.json
    python benchmarks/generation.py --models gpt2 --ways static --variants treadle

Each case and variant runs in a process of its own beside eager, on one thread: batch 1 (beams: 4), a prompt of 16 tokens (t5: an encoder
of 64, whisper: 3 s of sound), 64 new ones. Models are reduced in width and depth as in `tools/zoo.py`, with random weights.

dynamic    greedy, the cache that `generate` makes by default
static     greedy, `cache_implementation="static"`
sample     samples from the 50 most likely tokens, the same seed before every call
beams      four beams

forward    `model.forward` is compiled, `generate` itself is not
whole      `generate` itself is compiled

recompiles    after the second call of `generate`, in further calls of the same length
right         all calls gave eager's tokens, and left the generator of random numbers where eager leaves it
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402
import measure  # noqa: E402
import torchvision_schemas  # noqa: E402
import zoo  # noqa: E402
from markdown_table import markdown  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "generation.json"
NEW_TOKENS = 64
VARIANTS = ("treadle forward", "treadle whole", "torch.compile forward")

WAYS: Mapping[str, dict[str, Any]] = {
    "dynamic": {"do_sample": False},
    "static": {"do_sample": False, "cache_implementation": "static", "disable_compile": True},
    "sample": {"do_sample": True, "top_k": 50},
    "beams": {"do_sample": False, "num_beams": 4},
}
"""Arguments of `generate`. transformers compiles with torch.compile by itself where a cache is static, unless told not to."""


def _zoo_model(name: str) -> torch.nn.Module:
    model: Any = zoo.SCENARIOS[name].build()
    model.config.use_cache = model.generation_config.use_cache = True
    model.generation_config.decoder_start_token_id = model.generation_config.pad_token_id = 0
    return model  # type: ignore[no-any-return]


def _whisper() -> torch.nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(zoo.SEED)
    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=4000,
            d_model=256,
            encoder_layers=2,
            decoder_layers=4,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=1024,
            decoder_ffn_dim=1024,
            max_source_positions=150,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
            decoder_start_token_id=1,
        )
    ).eval()


def _prompt() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(1, 4000, (1, 16))}


MODELS: Mapping[str, tuple[Callable[[], torch.nn.Module], Callable[[], dict[str, torch.Tensor]]]] = {
    "gpt2": (lambda: _zoo_model("gpt2"), _prompt),
    "llama": (lambda: _zoo_model("llama"), _prompt),
    "t5": (lambda: _zoo_model("t5"), lambda: {"input_ids": torch.randint(1, 4000, (1, 64))}),
    "whisper": (_whisper, lambda: {"input_features": torch.randn(1, 80, 300)}),
}


def compiled_generate(model: Any, variant: str) -> Callable[..., Any]:
    import treadle

    compiler, _, part = variant.partition(" ")
    compile_it: Callable[..., Any] = treadle.compile if compiler == "treadle" else torch.compile
    if part == "whole":
        return compile_it(model.generate)  # type: ignore[no-any-return]
    model.forward = compile_it(model.forward)
    return model.generate  # type: ignore[no-any-return]


def compare(model_name: str, way: str, variant: str, seconds: float) -> dict[str, Any]:
    """The figures of one case and variant, in this process."""
    torch.set_num_threads(1)
    torchvision_schemas.define_missing_schemas()
    build, make_inputs = MODELS[model_name]
    model: Any = build()
    torch.manual_seed(zoo.SEED)
    inputs = make_inputs()
    arguments = {**WAYS[way], "min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS}
    twin = copy.deepcopy(model)
    generate = compiled_generate(twin, variant)

    def run(function: Callable[..., Any]) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(1)
        with torch.no_grad():
            return function(**inputs, **arguments), torch.get_rng_state()

    expected = run(model.generate)
    start = time.perf_counter()
    found = [run(generate)]
    first = time.perf_counter() - start
    found.append(run(generate))
    recompiled = measure.GRAPHS[variant.partition(" ")[0]]()[0]
    found += [run(generate) for _ in range(2)]
    is_right = all(all(map(torch.equal, expected, other)) for other in found)
    functions = {"eager": lambda: run(model.generate), "compiled": lambda: run(generate)}
    medians = measure.interleaved_medians(functions, seconds, 5)
    graphs, breaks = measure.GRAPHS[variant.partition(" ")[0]]()
    return {
        "model": model_name,
        "way": way,
        "variant": variant,
        "right": is_right,
        "first": first,
        **{f"{name} ms per token": 1e3 * value / NEW_TOKENS for name, value in medians.items()},
        "graphs": graphs,
        "breaks": breaks,
        "recompiles": graphs - recompiled,
    }


def in_process(case: Sequence[str], seconds: float, limit: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", *case, "--seconds", str(seconds)]
    row = dict(zip(("model", "way", "variant"), case, strict=True))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {**row, "error": f"more than {limit:.0f} s"}
    found = list(measure.lines_of_json(done.stdout))
    return found[-1] if found else {**row, "error": done.stderr.strip().splitlines()[-1:]}


def table_of(rows: Sequence[Mapping[str, Any]]) -> str:
    headings = [
        "",
        "way",
        "variant",
        "right",
        "× eager",
        "ms per token",
        "first call, s",
        "graphs / breaks / recompiles",
    ]
    return markdown(
        headings,
        [
            [row["model"], row["way"], row["variant"], str(row["error"]), "", "", "", ""]
            if "error" in row
            else [
                *(row["model"], row["way"], row["variant"], "yes" if row["right"] else "**no**"),
                f"{row['eager ms per token'] / row['compiled ms per token']:.2f}",
                *(f"{row['compiled ms per token']:.2f}", f"{row['first']:.1f}"),
                f"{row['graphs']} / {len(row['breaks'])} / {row['recompiles']}",
            ]
            for row in rows
        ],
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--seconds", type=float, default=6.0, help="of measuring for each case and variant")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds for a process")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    parser.add_argument(
        "--one", nargs=3, metavar=("MODEL", "WAY", "VARIANT"), help="in this process, as a line of JSON"
    )
    options = parser.parse_args(arguments)
    if options.one:
        model, way, variant = options.one
        print(json.dumps(compare(model, way, variant, options.seconds)))
        return 0
    rows = []
    for case in ((m, w, v) for m in options.models for w in options.ways for v in options.variants):
        rows.append(in_process(case, options.seconds, options.limit))
        print(*case, "error" if "error" in rows[-1] else "right" if rows[-1]["right"] else "WRONG", file=sys.stderr)
    command = " ".join(["python benchmarks/generation.py", *arguments])
    results = {"command": command, "machine": machine.describe(), "rows": rows}
    options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
