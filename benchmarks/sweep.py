"""Architectures of transformers and timm, built small, and programs of other libraries: right or wrong, graphs, breaks, seconds, speed.

    python benchmarks/sweep.py                               all of them, to benchmarks/results/sweep.json and sweep.md
    python benchmarks/sweep.py --every 12                    each twelfth
    python benchmarks/sweep.py --resume --most 25            the next 25 of which the output has no row yet
    python benchmarks/sweep.py --resume --again "not built"   those that could not be built, once more
    python benchmarks/sweep.py --library timm --names vit_tiny_patch16_224 resnet18
    python benchmarks/sweep.py --limit 120                   seconds for one architecture

Each architecture runs in a process of its own with random weights, one OpenMP thread, `torch.no_grad()` and the default backend: once
eagerly, three times through `treadle.compile`. A model that cannot be built without more knowledge of it, or that eager itself does not
run, says so and counts as neither right nor wrong. A model whose own code computes something else while it is compiled is right if Treadle
gives that, and the table says so.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import itertools
import json
import subprocess
import sys
import time
import unittest.mock
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "sweep.json"

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

SIZES = (
    SMALL,
    SMALL | PARTS_OF_LAYERS,
    HEADS_OF_64,
    HEADS_OF_128,
    FEW_LAYERS,
    FEW_LAYERS | PARTS_OF_LAYERS,
    LAYERS_OF_EACH_KIND,
    {},
)

WHERE_NONE = {"head_dim": 8, "vocab_size": 99, "pad_token_id": 1, "prediction_length": 4}
"""For attributes that a config has as None, and that its model needs as a number."""

MOST_PARAMETERS = 150_000_000
LARGE = 60_000_000

TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


# ---- what there is


def names_of(library: str) -> list[str]:
    """All architectures of a library, or programs of others: of timm its families, each of which stands for its smallest model."""
    import torchvision_schemas

    torchvision_schemas.define_missing_schemas()
    if library == "timm":
        import timm

        return list(timm.list_modules())
    if library == "libraries":
        import library_programs

        return list(library_programs.PROGRAMS)
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return list(MODEL_MAPPING_NAMES)


# ---- one architecture, in a process of its own


def build_timm(name: str) -> tuple[Any, dict[str, Any]]:
    import timm
    import torch

    smallest = _smallest_of(name)
    try:  # two layers of a large transformer, whose eager call alone takes seconds
        model: Any = timm.create_model(smallest, depth=2) if _size_of(smallest) > LARGE else timm.create_model(smallest)
    except TypeError:
        model = timm.create_model(smallest)
    model.eval()
    size = model.default_cfg.get("input_size", (3, 224, 224))
    return model, {"x": torch.randn(1, *size)}


def _smallest_of(name: str) -> str:
    """The model with the fewest parameters of a family of timm's; a model stands for itself."""
    import timm

    variants = timm.list_models(module=name) if name in timm.list_modules() else []
    variants = [
        model for model in variants if model.startswith("test_")
    ] or variants  # timm's own small models for tests
    variants = variants[:: 1 + len(variants) // 12]  # counting the parameters of all of a large family takes minutes
    return min(variants, key=_size_of) if variants else name


def _size_of(name: str) -> int:
    """The number of parameters of a model of timm's."""
    import timm
    import torch

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in timm.create_model(name).parameters())


def build_transformers(name: str) -> tuple[Any, dict[str, Any]]:
    """A small model and inputs that it runs on: sizes get less small, and inputs more, until eager raises nothing."""
    import torch
    from transformers import AutoConfig, AutoModel

    first: Exception | None = None
    for sizes, make, caches in itertools.product(SIZES, (_shrink, _made_small), (True, False)):
        try:
            config = make(AutoConfig.for_model(name), sizes)
            with torch.device("meta"):
                count = sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())
            if count > MOST_PARAMETERS:
                raise ValueError(f"{count / 1e6:.0f} million parameters")
            model: Any = AutoModel.from_config(config).eval()
            if not caches:
                model.config.use_cache = False
        except Exception as error:
            first = first or error
            continue
        for inputs in _inputs(model, config, torch):
            try:
                with torch.no_grad():
                    _run(model, inputs)
                return model, inputs
            except Exception as error:
                first = first or error
    raise first or ValueError("it has no inputs known here")


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
    return found | {key: value for key, value in WHERE_NONE.items() if _attribute(config, key, 0) is None}


def _attribute(config: Any, name: str, default: Any = None) -> Any:
    """An attribute of a config; the default where it has none, or refuses to say one for all layers."""
    try:
        return getattr(config, name, default)
    except ValueError:
        return default


def _parts(config: Any) -> dict[str, Any]:
    return {name: part for name, part in vars(config).items() if hasattr(part, "to_dict")}


def _inputs(model: Any, config: Any, torch: Any) -> Iterator[dict[str, Any]]:
    """Sets of inputs to try: the main one, then all that the signature names and that are known here, in several shapes."""
    accepted = inspect.signature(model.forward).parameters
    needed = [name for name, parameter in accepted.items() if parameter.default is inspect.Parameter.empty]
    for makers in (_makers(config, length, layout, torch) for length in (10, 32) for layout in range(LAYOUTS)):
        main = [name for name in (model.main_input_name,) if name in makers]
        with_decoder = [*main, "decoder_input_ids"] if config.is_encoder_decoder and main == ["input_ids"] else main
        named = [name for name in makers if name in accepted and name != "inputs_embeds"]
        without_mask = [name for name in named if name != "attention_mask"]
        with_texts = [name for name in (*needed, *TEXTS) if name in accepted and name in makers]
        for names in (with_decoder, needed, with_texts, named, without_mask):
            if names and all(name in makers for name in names):
                yield {name: makers[name]() for name in names}


LAYOUTS = 3
TEXTS = ("input_ids", "decoder_input_ids", "encoder_hidden_states")


def _makers(config: Any, length: int, layout: int, torch: Any) -> dict[str, Callable[[], Any]]:
    """A function for each known input of a model, for texts of this length and one of the layouts of images and sounds."""
    vision = next((part for part in _parts(config).values() if hasattr(part, "image_size")), config)
    size = getattr(vision, "image_size", 64)
    side = size if isinstance(size, int) else 64
    channels = getattr(vision, "num_channels", 3)
    audio = next((part for part in _parts(config).values() if hasattr(part, "num_mel_bins")), config)
    bins = getattr(audio, "num_mel_bins", None) or getattr(config, "feature_size", None) or 80
    hidden = getattr(config, "hidden_size", 32)
    ids = torch.randint(3, 90, (2, length))
    sounds = [(2, 4000), (2, 1, 4000), (2, 1, 16000)][layout]
    features = [(2, bins, 200), (2, 200, bins), (2, 1, 1024, bins)][layout]
    images = [(2, channels, side, side), (2, 1, channels, side, side), (2, 2, channels, side, side)][layout]
    past = (getattr(config, "context_length", None) or length) + max(getattr(config, "lags_sequence", None) or [0])
    patch = getattr(vision, "patch_size", 14)
    patch_length = channels * getattr(vision, "temporal_patch_size", 1) * (patch if isinstance(patch, int) else 14) ** 2
    return {
        "input_ids": lambda: ids,
        "attention_mask": lambda: torch.ones_like(ids),
        "pixel_values": lambda: torch.randn(images),
        "pixel_values_videos": lambda: torch.randn(2, 16, channels, side, side),
        "input_values": lambda: torch.randn(sounds),
        "input_features": lambda: torch.randn(features),
        "bbox": lambda: torch.randint(1, 9, (2, length, 4)).sort(-1).values,
        "decoder_input_ids": lambda: ids[:, :5],
        "inputs_embeds": lambda: torch.randn(2, length, hidden),
        "query_embeds": lambda: torch.randn(2, length, hidden),
        "encoder_hidden_states": lambda: torch.randn(2, length, getattr(config, "encoder_hidden_size", hidden)),
        "hidden_states": lambda: torch.randn(64, patch_length),
        "grid_thw": lambda: torch.tensor([[1, 8, 8]]),
        "past_values": lambda: torch.randn(2, past),
        "past_time_features": lambda: torch.randn(2, past, config.num_time_features),
        "past_observed_mask": lambda: torch.ones(2, past),
        "future_values": lambda: torch.randn(2, config.prediction_length),
        "future_time_features": lambda: torch.randn(2, config.prediction_length, config.num_time_features),
        "is_longer": lambda: torch.zeros(2, 1, dtype=torch.bool),
    }


def build_program(name: str) -> tuple[Any, dict[str, Any]]:
    import library_programs

    return library_programs.PROGRAMS[name]()


BUILDERS = {"timm": build_timm, "transformers": build_transformers, "libraries": build_program}


def measure(library: str, name: str) -> dict[str, Any]:
    """The row of one architecture."""
    import torch

    import torchvision_schemas

    torchvision_schemas.define_missing_schemas()
    import treadle

    torch.manual_seed(0)
    torch.set_num_threads(1)
    row: dict[str, Any] = {"library": library, "name": name}
    try:
        model, given = BUILDERS[library](name)
        with torch.no_grad():
            expected = _run(model, given)
    except Exception as error:
        return {**row, "outcome": "not built", "why": _without_paths(f"{type(error).__name__}: {error}")[:200]}
    compiled = treadle.compile(model)
    with torch.no_grad():
        start = time.perf_counter()
        found = [_run(compiled, given)]
        row["seconds"] = round(time.perf_counter() - start, 2)
        found += [_run(compiled, given) for _ in range(2)]
        row["speedup"] = round(_ratio(lambda: _run(model, given), lambda: _run(compiled, given)), 2)
    stats = treadle.stats()
    row["outcome"] = "right" if all(_are_close(expected, other) for other in found) else "wrong"
    if row["outcome"] == "wrong":
        with torch.no_grad(), unittest.mock.patch("torch.compiler.is_compiling", return_value=True):
            if all(_are_close(_run(model, given), other) for other in found):
                row.update(
                    outcome="right",
                    note="the library itself computes something else under torch.compiler.is_compiling()",
                )
    row["graphs"], row["recompiles"] = stats.graphs, len(stats.recompiles)
    row["breaks"] = [f"{b.code} at {_without_paths(b.where)}: {_without_paths(b.reason)[:160]}" for b in stats.breaks]
    row["eager"] = [_without_paths(graph.reason)[:160] for graph in stats.eager_graphs]
    row["skipped"] = [_without_paths(text)[:200] for text in stats.skipped]
    return row


def _run(model: Any, given: dict[str, Any]) -> Any:
    import torch

    torch.manual_seed(1)
    return model(**given)


def _ratio(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    """The seconds of one call to those of another, each the best of those that were made in turns."""
    best = [float("inf")] * 2
    for _ in range(7):
        for position, call in enumerate((one, other)):
            start = time.perf_counter()
            call()
            best[position] = min(best[position], time.perf_counter() - start)
    return best[0] / best[1]


def _are_close(expected: Any, found: Any) -> bool:
    import torch
    from torch.utils import _pytree as pytree

    one, other = (list(filter(_is_tensor, pytree.tree_leaves(_plain(part)))) for part in (expected, found))
    if len(one) != len(other):
        return False
    return all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.allclose(a, b, rtol=1e-3, atol=1e-4 * _scale(a), equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def _scale(tensor: Any) -> float:
    """The largest magnitude in a tensor, at least 1: rounding errors grow with it."""
    finite = tensor[tensor.isfinite()] if tensor.is_floating_point() else tensor[:0]
    return max(1.0, float(finite.abs().max())) if finite.numel() else 1.0


def _is_tensor(leaf: Any) -> bool:
    import torch

    return isinstance(leaf, torch.Tensor)


def _plain(output: Any) -> Any:
    return dict(output) if hasattr(output, "keys") else output


def _without_paths(text: str) -> str:
    """The text with files named from the folder on that Python imports them from: results are read elsewhere."""
    for folder in sorted({str(ROOT), *filter(None, sys.path)}, key=len, reverse=True):
        text = text.replace(f"{folder}/", "")
    return text


# ---- all of them


def row_of(library: str, name: str, limit: float) -> dict[str, Any]:
    """The row of one architecture, from a process that may take `limit` seconds."""
    command = [sys.executable, __file__, "--one", library, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"library": library, "name": name, "outcome": "no result", "why": f"more than {limit:.0f} s"}
    if done.returncode:
        return {
            "library": library,
            "name": name,
            "outcome": "no result",
            "why": _without_paths(done.stderr.strip())[-300:],
        }
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a Markdown table, with a line of totals."""
    lines = ["| library | architecture | outcome | graphs | breaks | seconds | × eager | reason |", "|---" * 8 + "|"]
    for row in rows:
        reasons = [
            *row.get("breaks", ()),
            *row.get("eager", ()),
            *row.get("skipped", ()),
            row.get("note"),
            row.get("why"),
        ]
        reason = next((text for text in reasons if text), "").replace("|", "/").replace("\n", " ")
        numbers = [row.get("graphs", ""), len(row["breaks"]) if "breaks" in row else "", row.get("seconds", "")]
        cells = [row["library"], row["name"], row["outcome"], *numbers, row.get("speedup", ""), reason[:160]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    counts = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in ("right", "wrong", "no result")}
    whole = sum(row.get("graphs") == 1 and not row["breaks"] for row in rows if row["outcome"] == "right")
    lines += [
        "",
        f"{counts['right']} right, {whole} of them one graph; {counts['wrong']} wrong; {counts['no result']} no result.",
    ]
    return "\n".join(lines) + "\n"


def _rows_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=sorted(BUILDERS), nargs="+", default=sorted(BUILDERS))
    parser.add_argument("--names", nargs="+", metavar="NAME", help="only these architectures")
    parser.add_argument("--every", type=int, default=1, help="only each n-th architecture")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the output has, each with its commit")
    parser.add_argument("--again", nargs="+", metavar="OUTCOME", help="with --resume: not the rows with these outcomes")
    parser.add_argument("--most", type=int, help="new rows, at most")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for one architecture")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes; the table beside it")
    parser.add_argument("--one", nargs=2, metavar=("LIBRARY", "NAME"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if options.one:
        print(json.dumps(measure(*options.one)))
        return 0
    import machine

    rows: list[dict[str, Any]] = _rows_of(options.output) if options.resume else []
    rows = [row for row in rows if row["outcome"] not in (options.again or ())]
    known = {(row["library"], row["name"]) for row in rows}
    wanted = [
        (library, name)
        for library in options.library
        for name in options.names or names_of(library)[:: options.every]
        if (library, name) not in known
    ]
    head = {"command": " ".join(["python benchmarks/sweep.py", *arguments]), "machine": machine.describe()}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for library, name in wanted[: options.most]:
        rows.append(row_of(library, name, options.limit) | {"commit": head["machine"]["commit"]})
        print(library, name, rows[-1]["outcome"], file=sys.stderr, flush=True)
        # After every row, so that an interrupted run leaves results.
        options.output.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n", encoding="utf-8")
        options.output.with_suffix(".md").write_text(table(rows), encoding="utf-8")
    return int(any(row["outcome"] == "wrong" for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
