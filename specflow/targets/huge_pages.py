"""Large memory pages for weights: decoding one row reads every weight once, and small pages make that reading slow.

With pages of 4 kB a pass over a few hundred megabytes misses the processor's table of pages all the time, and in a
virtual machine every miss costs two walks. Linux gives pages of 2 MB to memory that asks for them.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

LEAST_BYTES = 4 << 20
"""Of a mapping worth asking for: two large pages."""
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
"""``linux/mman.h``; collapsing at once needs Linux 6.1, older ones do it by and by."""
MAPS = Path("/proc/self/maps")


def use_huge_pages() -> int:
    """Ask for large pages for all large anonymous memory of this process; returns the bytes asked for.

    Call it when the weights are in place. Changes no content; 0 where the system has no such thing or refuses.
    """
    if sys.platform != "linux" or not MAPS.exists():
        return 0
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    asked = 0
    for start, length in anonymous_mappings(MAPS.read_text(encoding="ascii", errors="replace")):
        if advise(start, length, MADV_HUGEPAGE) == 0:
            asked += length
            advise(start, length, MADV_COLLAPSE)  # fails where there is too little room: then it stays as it was
    return asked


def anonymous_mappings(maps: str, *, least: int = LEAST_BYTES) -> list[tuple[int, int]]:
    """Address and length of the private, writable mappings of no file in the text of ``/proc/*/maps``."""
    found = []
    for line in maps.splitlines():
        words = line.split()
        if len(words) < 5 or not words[1].startswith("rw") or not words[1].endswith("p"):
            continue
        if words[4] != "0" or (len(words) > 5 and words[5] != "[heap]"):
            continue
        start, end = (int(address, 16) for address in words[0].split("-"))
        if end - start >= least:
            found.append((start, end - start))
    return found
