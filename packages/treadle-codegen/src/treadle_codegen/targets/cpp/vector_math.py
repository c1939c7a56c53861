"""Elementary functions on whole vectors, from the SLEEF library inside libtorch_cpu: eager's own kernels call the same ones.

    v2 = f_sin(v1)        in a vector loop becomes        v2 = sleef_sin_d(v1)

The second function is declared with g++'s attribute `simd`, so that the compiler's vectoriser calls its vector forms by the names of the
x86-64 vector ABI (`_ZGVeN8v_sleef_sin_d` for eight doubles). These are defined in the unit and jump through pointers that are filled in
once the library is loaded. The C library's own function would be called for one element after the other: exp of 10,000 doubles
takes 7 us here and 60 us there (one thread, AVX-512).
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
from pathlib import Path

import torch

from treadle_codegen.targets.cpp.processor import processor_line
from treadle_codegen.targets.cpp.vector_halves import calls_half_functions

# Not the hyperbolic functions that grow: SLEEF's overflow too early (sinh of 710, asinh of 1e300).
# Operation, with SLEEF's name -> number of arguments, and suffix: the error in tenths of the last place. ATen's `Vectorized` has the same.
_ONE = "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan tanh atanh erf lgamma"
FUNCTIONS: dict[str, tuple[int, str]] = {
    **dict.fromkeys(_ONE.split(), (1, "_u10")),
    "erfc": (1, "_u15"),
    "pow": (2, "_u10"),
    "atan2": (2, "_u10"),
    "hypot": (2, "_u05"),
}
_WIDTHS = {"d": {"avx512f": 8, "avx2": 4}, "f": {"avx512f": 16, "avx2": 8}}
_LETTERS = {torch.float64: "d", torch.float32: "f", torch.float16: "f", torch.bfloat16: "f"}
# Begins with letters, which `re` looks for a hundred times as fast as for `\b`.
_USE = re.compile(r"sleef_(?<!\wsleef_)([a-z0-9]+)_([df])\(")
_NAMES, _POINTERS = "treadle_sleef_names", "treadle_sleef"

_HEAD = """
// Functions of SLEEF, through pointers that the loader fills in; g++ vectorises calls of the scalar names.
#define SLEEF_OWN extern "C" __attribute__((visibility("hidden")))
#define SLEEF_SIMD SLEEF_OWN __attribute__((simd("notinbranch"), const, nothrow, leaf))
"""


def sleef_call(op: str, dtype: torch.dtype) -> str | None:
    """The name of the function that computes `op`, or None where the processor, the compiler or torch has none."""
    letter, sets = _LETTERS.get(dtype), instruction_sets()
    if op not in FUNCTIONS or letter is None or not sets:
        return None
    return f"sleef_{op}_{letter}" if all(_symbol(op, letter, isa) in _symbols() for isa in sets) else None


def definitions(text: str) -> str:
    """What a unit needs for the calls in `text`: declarations, vector forms, and the table of pointers."""
    used = sorted(set(_USE.findall(text)))
    if not used:
        return ""
    sets = instruction_sets()
    names = [_symbol(op, letter, isa) for op, letter in used for isa in sets]
    library = [f"#define sleef_{op}_{letter} f_{op}\n" for op, letter in used]
    parts = ["\n#ifdef __clang__  // has no such attribute\n", *library, "#else", _HEAD]
    parts += [f'extern "C" {{ char {_NAMES}[] = "{" ".join(names)}"; void* {_POINTERS}[{len(names)}]; }}\n']
    for k, (op, letter) in enumerate(used):
        parts.append(_function(op, letter, {isa: k * len(sets) + n for n, isa in enumerate(sets)}))
    return "".join([*parts, "#endif\n"])


def calls_vector_functions(text: str) -> bool:
    """Whether `text` has a call that the compiler's vectoriser replaces by one of a vector form."""
    return _USE.search(text) is not None or "vector_fmod_" in text or calls_half_functions(text)


def bind(library: ctypes.CDLL) -> None:
    """Fill in the pointers of a loaded library, where it has any. Raises OSError where this torch lacks one of the functions."""
    names = getattr(library, _NAMES, None)
    if names is None:
        return
    wanted = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, _NAMES))).decode().split()
    known = _symbols()
    missing = [name for name in wanted if name not in known]
    if missing:
        raise OSError(f"libtorch_cpu has no {missing[0]}")
    pointers = (ctypes.c_void_p * len(wanted)).in_dll(library, _POINTERS)
    for k, name in enumerate(wanted):
        pointers[k] = known[name]


def _symbol(op: str, letter: str, isa: str) -> str:
    _, suffix = FUNCTIONS[op]
    return f"Sleef_{op}{letter}{_WIDTHS[letter][isa]}{suffix}{isa}"


def _function(op: str, letter: str, slots: dict[str, int]) -> str:
    """The scalar name's declaration and the definitions behind it.

    The scalar form takes a vector of equal elements, so an element's value does not depend on where it lies.
    """
    scalar, size = ("double", 8) if letter == "d" else ("float", 4)
    arguments, name = FUNCTIONS[op][0], f"sleef_{op}_{letter}"
    values = ["x", "y"][:arguments]
    widest = next(iter(slots))
    lanes = _WIDTHS[letter][widest]
    lines = [f"SLEEF_SIMD {scalar} {name}({', '.join([scalar] * arguments)});\n"]

    def define(asm: str, lanes: int, body: str) -> None:
        vector = f"typedef {scalar} t_{asm} __attribute__((vector_size({lanes * size})));\n" if lanes > 1 else ""
        own = f"t_{asm}" if lanes > 1 else scalar
        parameters = ", ".join(f"{own} {v}" for v in values)
        lines.append(
            f'{vector}SLEEF_OWN {own} w_{asm}({parameters}) asm("{asm}");\n{own} w_{asm}({parameters}) {{ {body} }}\n'
        )

    def call(isa: str, lanes: int, own: str) -> str:
        types = ", ".join([own] * arguments)
        return f"(({own} (*)({types})){_POINTERS}[{slots[isa]}])({', '.join(values)})"

    v = "v" * arguments
    full = _WIDTHS[letter]
    if "avx512f" in slots:
        asm = f"_ZGVeN{full['avx512f']}{v}_{name}"
        define(asm, full["avx512f"], f"return {call('avx512f', full['avx512f'], 't_' + asm)};")
    for isa_letter in "dc":
        asm = f"_ZGV{isa_letter}N{full['avx2']}{v}_{name}"
        define(asm, full["avx2"], f"return {call('avx2', full['avx2'], 't_' + asm)};")
    half, wide = full["avx2"] // 2, f"t__ZGVdN{full['avx2']}{v}_{name}"
    asm = f"_ZGVbN{half}{v}_{name}"
    spread = "".join(f"{wide} {a}w = {{}}; __builtin_memcpy(&{a}w, &{a}, sizeof {a}); " for a in values)
    wide_arguments = ", ".join(f"{a}w" for a in values)
    define(
        asm, half,
        f"{spread}{wide} r = w__ZGVdN{full['avx2']}{v}_{name}({wide_arguments}); t_{asm} h; __builtin_memcpy(&h, &r, sizeof h); return h;",
    )  # fmt: skip
    asm = f"_ZGV{'e' if widest == 'avx512f' else 'd'}N{lanes}{v}_{name}"
    equal = "".join(f"t_{asm} {a}w = {a} - t_{asm}{{}}; " for a in values)
    define(name, 1, f"{equal}return w_{asm}({wide_arguments})[0];")
    return "".join(lines)


def vector_forms(letter: str) -> list[tuple[str, int]]:
    """The vector forms that the vectoriser may call: the letter of the x86-64 vector ABI, and the lanes."""
    widths = _WIDTHS[letter]
    forms = [("e", widths["avx512f"])] if "avx512f" in instruction_sets() else []
    return [*forms, ("d", widths["avx2"]), ("c", widths["avx2"]), ("b", widths["avx2"] // 2)]


@functools.cache
def instruction_sets() -> tuple[str, ...]:
    """The instruction sets, widest first, of which this processor runs SLEEF's functions; none where they are not used."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return ()
    flags = set((processor_line("flags") or "").split())
    if not {"avx2", "fma"} <= flags:
        return ()
    return ("avx512f", "avx2") if "avx512f" in flags else ("avx2",)


@functools.cache
def _symbols() -> dict[str, int]:
    """Addresses of the functions in the libtorch_cpu of this process."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return {}
    found: dict[str, int] = {}
    for op in FUNCTIONS:
        for letter, widths in _WIDTHS.items():
            for isa in widths:
                function = getattr(library, _symbol(op, letter, isa), None)
                if function is not None:
                    found[_symbol(op, letter, isa)] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return found
