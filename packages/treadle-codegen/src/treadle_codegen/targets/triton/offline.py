"""Compile kernels to binaries without a GPU, through the cache.

A binary is kept under the hash of everything that it depends on: the kernel's text, the prelude, constants, launch options,
signature, alignment, architecture, Triton's version and settings. Several new kernels are compiled at the same time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle_codegen.__about__ import __version__
from treadle_codegen.cache import FileCache, content_key
from treadle_codegen.errors import CodegenUnavailable, KernelRefused
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.cpp.build import kernel_cache
from treadle_codegen.targets.triton import workers
from treadle_codegen.targets.triton.cubin import resources
from treadle_codegen.targets.triton.installation import triton_identity
from treadle_codegen.targets.triton.unit import UnitKernel

_PRELUDE = Path(__file__).with_name("prelude.py")
_KIND, _SUFFIX = "triton", ".kernel"
_KILLED = -9  # status of a process that SIGKILL ended: by the system for want of memory, or by us


@dataclass(frozen=True, slots=True)
class Architecture:
    """What kernels are compiled for: the arguments of Triton's `GPUTarget`."""

    backend: str
    name: int | str
    warp_size: int

    @classmethod
    def cuda(cls, capability: int) -> Architecture:
        """CUDA devices of this compute capability: 90 for 9.0."""
        return cls("cuda", capability, 32)


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled kernel.

    key: the hash of what it was made from; facts: its `name` in the binary, `num_warps`, `warp_size`, `shared` (bytes),
    `hidden_parameters` (PTX types of what Triton adds to its parameters), and for CUDA `registers`, `stack_bytes` and
    `local_bytes` (what of the stack the PTX asks for: tables of libdevice's functions; the rest are spilled registers).
    """

    key: str
    content: bytes
    facts: Mapping[str, Any]
    cached: bool


@functools.lru_cache(maxsize=1)
def _prelude_hash() -> str:
    return hashlib.sha256(_PRELUDE.read_bytes()).hexdigest()


def _request(kernel: UnitKernel, architecture: Architecture, aligned: bool) -> workers.Request:
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages, **kernel.options}
    if kernel.checks_bounds:
        options |= {"debug": True, "sanitize_overflow": False}
    return workers.Request(
        name=kernel.name,
        text=kernel.text,
        signature=kernel.signature,
        constants=dict(kernel.constants),
        target=(architecture.backend, architecture.name, architecture.warp_size),
        options=options,
        aligned=aligned,
    )


def _key(request: workers.Request) -> str:
    return content_key(
        request["text"],
        repr(sorted(request["constants"].items())),
        repr((request["signature"], sorted(request["options"].items()), request["target"], request["aligned"])),
        _prelude_hash(),
        triton_identity(),
        workers.settings(),
        __version__,
    )


def compile_kernels(
    kernels: Iterable[UnitKernel],
    architecture: Architecture,
    options: CodegenOptions,
    *,
    aligned: bool = True,
    background: bool = False,
) -> dict[str, Binary]:
    """The binary of each kernel by name. `aligned`: their pointers are multiples of 16 bytes; `background`: one by one, at low
    priority.

    Raises KernelRefused for a kernel that Triton does not compile, CodegenUnavailable without Triton or memory for it.
    """
    cache = kernel_cache(options)
    requests = {kernel.name: _request(kernel, architecture, aligned) for kernel in kernels}
    keys = {name: _key(request) for name, request in requests.items()}
    binaries = {name: found for name, key in keys.items() if (found := _read(cache, key)) is not None}
    missing = [request for name, request in requests.items() if name not in binaries]
    try:
        pool = workers.BACKGROUND if background else workers.FOREGROUND
        answers = pool.compile_all(missing, at_once=1 if background else workers.processors())
    except OSError as error:
        raise CodegenUnavailable(f"Triton's compiler could not be run: {error}") from error
    for request, answer in zip(missing, answers, strict=True):
        name = request["name"]
        if isinstance(answer, workers.Crashed) or answer.facts is None:
            raise _refused(request, answer, options)
        facts = answer.facts | (resources(answer.binary) if architecture.backend == "cuda" else {})
        cache.store(_KIND, keys[name], _with_facts(facts, answer.binary), _SUFFIX)
        binaries[name] = Binary(keys[name], answer.binary, facts, cached=False)
    return binaries


def _with_facts(facts: Mapping[str, Any], binary: bytes) -> bytes:
    header = json.dumps(facts).encode()
    return struct.pack("<q", len(header)) + header + binary


def _read(cache: FileCache, key: str) -> Binary | None:
    content = cache.read(_KIND, key, _SUFFIX)
    if content is None:
        return None
    (length,) = struct.unpack_from("<q", content)
    return Binary(key, content[8 + length :], json.loads(content[8 : 8 + length]), cached=True)


def _refused(
    request: workers.Request, answer: workers.Answer | workers.Crashed, options: CodegenOptions
) -> CodegenUnavailable:
    """The error for a kernel without binary; its source is kept in a file."""
    if isinstance(answer, workers.Crashed):
        if answer.status == _KILLED:
            return CodegenUnavailable(f"Triton's compiler was killed while it compiled kernel {request['name']}")
        reason = f"the compiler died with status {answer.status}\n{answer.printed}"
    else:
        reason = answer.error
    return KernelRefused(request["name"], reason, _keep_source(request, reason, options))


def _keep_source(request: workers.Request, reason: str, options: CodegenOptions) -> str:
    """The path of a file with the kernel, how it is compiled and what Triton said; "" where nothing can be written."""
    how = {key: value for key, value in request.items() if key != "text"}
    comment = "".join(f"# {line}\n" for line in f"{how}\n{reason}".splitlines())
    text = f"{request['text']}\n\n{comment}"
    for keep in (_keep_in_cache, _keep_in_temporary_directory):
        with contextlib.suppress(OSError):
            return str(keep(request["name"], text, options))
    return ""


def _keep_in_cache(name: str, text: str, options: CodegenOptions) -> Path:
    """The file of this kernel in the cache directory, written anew. Raises OSError."""
    folder = options.cache_dir / "refused"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    written, path = _new_file(name, text, folder), folder / f"{name}.py"
    os.replace(written, path)
    return path


def _keep_in_temporary_directory(name: str, text: str, options: CodegenOptions) -> Path:
    """A file of a name that nobody can tell beforehand: others may write into the directory, too. Raises OSError."""
    return _new_file(name, text, None)


def _new_file(name: str, text: str, folder: Path | None) -> Path:
    """A new file with this text that only this user can read. Raises OSError, and leaves nothing then."""
    handle, path = tempfile.mkstemp(prefix=f"treadle-{name}-", suffix=".py", dir=folder)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
    except OSError:
        os.unlink(path)
        raise
    return Path(path)
