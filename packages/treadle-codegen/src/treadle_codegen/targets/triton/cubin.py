"""What a cubin tells of the resources of its kernel.

The layout is ELF's; `.nv.info` holds records of format, attribute, size and content. Attribute numbers are those for which
`cuobjdump --dump-resource-usage` of CUDA 12.8 prints the same values.
"""

from __future__ import annotations

import struct

_ELF64 = b"\x7fELF\x02"
_SECTION = "<IIQQQQIIQQ"  # Elf64_Shdr: name, type, flags, address, offset, size, ...
_SIZED = 0x04  # the format of records that have a size
_ATTRIBUTES = {0x2F: "registers", 0x11: "stack_bytes"}  # content: symbol, value


def resources(binary: bytes) -> dict[str, int]:
    """`registers` and `stack_bytes` of a thread, as far as the cubin tells; registers are spilled to the stack."""
    if not binary.startswith(_ELF64):
        return {}
    found: dict[str, int] = {}
    for start, end in _sections(binary, b".nv.info"):
        at = start
        while at + 4 <= end:
            form, attribute, size = struct.unpack_from("<BBH", binary, at)
            if form == _SIZED and attribute in _ATTRIBUTES and size >= 8 and at + 12 <= end:
                key = _ATTRIBUTES[attribute]
                found[key] = max(found.get(key, 0), struct.unpack_from("<I", binary, at + 8)[0])
            at += 4 + (size if form == _SIZED else 0)
    return found


def _sections(binary: bytes, wanted: bytes) -> list[tuple[int, int]]:
    """Where the sections of that name begin and end."""
    (table,) = struct.unpack_from("<Q", binary, 0x28)
    size, count, names = struct.unpack_from("<HHH", binary, 0x3A)
    headers = [struct.unpack_from(_SECTION, binary, table + k * size) for k in range(count)]
    found = []
    for name, _, _, _, offset, length, *_ in headers:
        start = headers[names][4] + name
        if binary[start : binary.index(b"\0", start)] == wanted:
            found.append((offset, offset + length))
    return found
