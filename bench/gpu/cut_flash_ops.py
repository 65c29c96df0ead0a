"""Blank the GPU code of a `flash_ops.abi3.so` that a bf16 Llama on an H100 or H200 does not run.

The library of sglang-kernel holds FlashAttention 3 for three GPU generations, several number types
and head sizes, 1.1 GB in all. Code is loaded when it is first called, so what is never called may
be zeros; they compress to nothing.

The layout of the `.nv_fatbin` section: a 16-byte header (magic, version, header size, size of all
entries), then entries (kind, version, header size, payload size, ..., the GPU's number at byte 28).
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

MAGIC = 0xBA55ED50
HOPPER = 90
HEAD_DIMS = (64, 128)
_KERNEL = re.compile(rb"\.text\.(_Z[A-Za-z0-9_]+)")
_MAINLOOP = re.compile(rb"CollectiveMainloopFwdSm90ILi\d+E.*?ENS6_IJ.*?EEELi(\d+)E(\w+?)E")


def fatbin(library: bytes | bytearray) -> tuple[int, int]:
    """Offset and size of the section `.nv_fatbin` of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", library, 0x28)
    size, count, names = struct.unpack_from("<HHH", library, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", library, table + i * size) for i in range(count)]
    for section in sections:
        start = sections[names][4] + section[0]
        if library[start : library.index(b"\0", start)] == b".nv_fatbin":
            return section[4], section[5]
    raise ValueError("no .nv_fatbin section in this file")


def payloads(library: bytes | bytearray) -> Iterator[tuple[int, int, int]]:
    """GPU number, offset and size of each piece of GPU code."""
    at, size = fatbin(library)
    end = at + size
    while at < end:
        magic, _version, header, entries = struct.unpack_from("<IHHQ", library, at)
        if magic != MAGIC:
            at += 8
            continue
        entry, at = at + header, at + header + entries
        while entry < at:
            _kind, _version, head, length = struct.unpack_from("<HHIQ", library, entry)
            (gpu,) = struct.unpack_from("<I", library, entry + 28)
            yield gpu, entry + head, length
            entry += head + length


def wanted(gpu: int, code: bytes) -> bool:
    """Whether a bf16 model with heads of 64 or 128 may call this code on a Hopper GPU."""
    if gpu != HOPPER:
        return False
    kernels = set(_KERNEL.findall(code))
    loops = [name for name in kernels if b"CollectiveMainloopFwdSm90" in name]
    if loops:
        found = _MAINLOOP.search(loops[0])
        return found is None or (int(found[1]) in HEAD_DIMS and b"bfloat16" in loops[0])
    # What schedules the work and combines its parts; the rest is sparse attention.
    return any(b"prepare_varlen" in name or b"FwdCombine" in name for name in kernels)


def main() -> None:
    """`cut_flash_ops.py IN OUT`."""
    if len(sys.argv) != 3:
        sys.exit("usage: cut_flash_ops.py IN OUT")
    library = bytearray(Path(sys.argv[1]).read_bytes())
    kept = 0
    for gpu, offset, length in list(payloads(library)):
        if wanted(gpu, bytes(library[offset : offset + length])):
            kept += length
        else:
            library[offset : offset + length] = bytes(length)
    Path(sys.argv[2]).write_bytes(library)
    print(f"{kept / 1e6:.0f} MB of GPU code kept")


if __name__ == "__main__":
    main()
