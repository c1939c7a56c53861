"""A process that compiles kernels with Triton, one after the other, until its input ends.

It is run as a script and must start fast, so it does not import torch. Messages on both pipes are pickled, behind their length.

A request is a dictionary (`targets.triton.workers.Request`). The answers to one are `"accepted"`, then a dictionary with either
`binary` and `facts`, or `error`. A request that came too late, because the process ends after some idle time, gets no answer.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import pickle
import queue
import re
import struct
import sys
import threading
from typing import Any, BinaryIO

IDLE_SECONDS = 300.0
_ENTRY = re.compile(r"\.visible \.entry [\w$]+\s*\((.*?)\)", re.DOTALL)
_LOCAL = re.compile(r"\.local \.align \d+ \.b8\s+[\w$]+\[(\d+)\]")
_PARAMETER = re.compile(r"\.param\s+\.(\w+)")


def main() -> None:
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Triton and ptxas print belongs to the error output
    setup = read_message(requests)
    assert isinstance(setup, dict)
    os.nice(setup["niceness"])
    sys.path[:] = setup["path"]
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests, waiting), daemon=True).start()
    with contextlib.suppress(Exception):  # a request will say what is wrong
        import triton  # noqa: F401  meanwhile the parent prepares its request
    while True:
        try:
            request = waiting.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            return
        write_message(answers, "accepted")
        write_message(answers, _answer(request))


def _receive(requests: BinaryIO, waiting: queue.SimpleQueue[Any]) -> None:
    while (request := read_message(requests)) is not None:
        waiting.put(request)
    os._exit(0)  # the parent is gone; nobody wants what is being compiled


def read_message(stream: BinaryIO) -> Any:
    """The next message, or None at the end of the stream."""
    header = stream.read(8)
    if len(header) < 8:
        return None
    (length,) = struct.unpack("<q", header)
    body = stream.read(length)
    return pickle.loads(body) if len(body) == length else None


def write_message(stream: BinaryIO, message: Any) -> None:
    body = pickle.dumps(message)
    stream.write(struct.pack("<q", len(body)) + body)
    stream.flush()


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            binary, facts = compile_kernel(request)
        return {"binary": binary, "facts": facts}
    except Exception as error:  # named boundary: the parent raises it with the kernel's name
        return {"error": f"{type(error).__name__}: {error}\n{printed.getvalue()}".strip()}


def compile_kernel(request: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """The kernel's binary, and what a launch has to know: threads, bytes of shared and scratch memory, hidden parameters."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import ir, make_backend

    function = _function(request["name"], request["text"])
    signature = dict.fromkeys(function.arg_names, "constexpr") | dict(request["signature"])
    source = ASTSource(function, signature, request["constants"], _attributes(function, request))
    target = GPUTarget(*request["target"])
    backend = make_backend(target)
    options = backend.parse_options(dict(request["options"]))
    # These are the steps of `triton.compile` without its cache, whose key hashes the whole installation: 0.2 s per process.
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    facts: dict[str, Any] = {"num_warps": options.num_warps, "num_ctas": options.num_ctas}
    made: Any = source.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    for name, stage in stages.items():
        made = stage(made, facts)
        if name == "ptx":
            parameters = _parameters(made)
            facts["hidden_parameters"] = parameters[len(request["signature"]) :]
            facts["waits"] = int("griddepcontrol.wait" in made)
            facts["local_bytes"] = sum(map(int, _LOCAL.findall(made)))
    plain = {key: value for key, value in facts.items() if isinstance(value, (int, str, list))}
    return made, plain | {"warp_size": target.warp_size}


def _function(name: str, text: str) -> Any:
    """The kernel's `JITFunction`. Triton reads its source through `linecache`."""
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"__name__": f"treadle_unit_{name}"}
    exec(compile(text, file, "exec"), scope)  # our own text
    return scope[name]


def _attributes(function: Any, request: dict[str, Any]) -> dict[tuple[int], list[list[Any]]]:
    if not request["aligned"]:
        return {}
    names = function.arg_names
    pointers = [name for name, type_ in request["signature"] if type_.startswith("*")]
    return {(names.index(name),): [["tt.divisibility", 16]] for name in pointers}


def _parameters(ptx: str) -> list[str]:
    """The types of the entry's parameters."""
    entry = _ENTRY.search(ptx)
    return _PARAMETER.findall(entry.group(1)) if entry else []


if __name__ == "__main__":
    main()
