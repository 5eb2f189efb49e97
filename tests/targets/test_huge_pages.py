"""Which mappings are asked for, and that asking changes nothing."""

from __future__ import annotations

import torch

from specflow.targets.huge_pages import anonymous_mappings, use_huge_pages

MAPS = """\
00400000-00c00000 r-xp 00000000 fe:00 17 /usr/bin/python3
00c00000-01c00000 rw-p 00800000 fe:00 17 /usr/bin/python3
01c00000-03c00000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000300000 rw-p 00000000 00:00 0
7f0000400000-7f0000c00000 rw-p 00000000 00:00 0
7f0001000000-7f0002000000 ---p 00000000 00:00 0
7f0003000000-7f0004000000 rw-s 00000000 00:00 0
7f0005000000-7f0006000000 rw-s 00000000 00:01 99 /memfd:x (deleted)
7ffc00000000-7ffc01000000 rw-p 00000000 00:00 0 [stack]
"""


def test_only_large_private_writable_memory_of_no_file_is_chosen() -> None:
    assert anonymous_mappings(MAPS) == [(0x01C00000, 0x2000000), (0x7F0000400000, 0x800000)]
    assert anonymous_mappings(MAPS, least=1 << 20)[1] == (0x7F0000000000, 0x300000)


def test_contents_stay_as_they_are() -> None:
    weights = torch.arange(3 << 20, dtype=torch.float32)
    expected = weights.clone()
    assert use_huge_pages() >= 0
    assert torch.equal(weights, expected)
