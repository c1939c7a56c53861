"""How many bytes a thread reads at once, from the text that Triton compiles kernels to: neighbours in memory go together."""

from __future__ import annotations

import builtins
import linecache
import re
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from aten_capture import capture

from treadle_codegen import compile_graph

CASES: dict[str, Callable[..., torch.Tensor]] = {
    "sums down columns": lambda x, i: x.sum(0),
    "maxima down columns": lambda x, i: x.amax(0),
    "sums of gathered rows": lambda x, i: F.embedding(i.view(-1, 4), x).sum(1),
    "gathered rows": lambda x, i: x[i] * 2,
    "a row for all rows": lambda x, i: x + x[3],
}


def ptx(unit: str, directory: Path) -> list[str]:
    """The text of each kernel of a unit for sm_90."""
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    path = directory / "unit.py"
    path.write_text(unit)
    linecache.clearcache()
    module = types.ModuleType("unit")
    module.__file__ = str(path)
    exec(builtins.compile(unit, str(path), "exec"), module.__dict__)
    found = []
    for name, record in module.KERNELS.items():
        function = getattr(module, name)
        signature = dict(zip(function.arg_names, record["signature"], strict=False))
        aligned = {(k,): [["tt.divisibility", 16]] for k, type_ in enumerate(record["signature"]) if type_[0] == "*"}
        source = ASTSource(
            function, signature | dict.fromkeys(record["constants"], "constexpr"), record["constants"], aligned
        )
        options = {key: record[key] for key in ("num_warps", "num_stages")}
        found.append(compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"])
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_16_bytes_are_read_at_once(name: str, dtype: torch.dtype, rendered_units: set[str], tmp_path: Path) -> None:
    x, i = torch.randn(4096, 1024).to(dtype), torch.randint(4096, (512,))
    before = set(rendered_units)
    compile_graph(capture(CASES[name], [x, i]), [x, i])
    units = rendered_units - before
    assert units
    for text in (text for unit in units for text in ptx(unit, tmp_path)):
        reads = re.findall(r"ld\.global[\w.:]*", text)
        assert any(read.endswith(".v4.b32") for read in reads), reads
