"""Triton kernel: one program per request walks down its tree and draws the token after the accepted path."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tree_kernel(
    tokens, child, sibling, target, choices, greedy, coins, path, accepted, following, slots, depth, vocabulary,
    BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    greedily = tl.load(greedy + b).to(tl.int32)
    here = 0
    level = 0
    walking = 1
    tl.store(path + b * (depth + 1), 0)
    while walking != 0:
        slot = -1
        if level < depth:
            slot = tl.load(child + b * slots + here).to(tl.int32)
        mass = 0.0
        taken = -1
        choice = tl.load(choices + b * slots + here).to(tl.int32)
        coin = tl.load(coins + b * (slots + 1) + here)
        while (slot >= 0) & (taken < 0):
            token = tl.load(tokens + b * slots + slot).to(tl.int32)
            mass += tl.load(target + (b * slots + here) * vocabulary + token).to(tl.float32)
            good = tl.where(greedily != 0, (token == choice).to(tl.int32), (coin < mass).to(tl.int32))
            taken = tl.where(good != 0, slot, taken)
            slot = tl.load(sibling + b * slots + slot).to(tl.int32)
        walking = ((taken >= 0) & (choice >= 0)).to(tl.int32)
        if walking != 0:
            here = taken
            level += 1
            tl.store(path + b * (depth + 1) + level, taken.to(tl.int64))
    found = tl.load(choices + b * slots + here).to(tl.int32)
    if (found >= 0) & (greedily == 0):
        found = -1
        coin = tl.load(coins + b * (slots + 1) + slots)
        removing = (level < depth).to(tl.int32)  # at the last level no child was looked at
        total = 0.0
        for low in range(0, vocabulary, BLOCK):
            v = low + tl.arange(0, BLOCK)
            p = tl.load(target + (b * slots + here) * vocabulary + v, mask=v < vocabulary, other=0.0).to(tl.float32)
            slot = tl.where(removing != 0, tl.load(child + b * slots + here).to(tl.int32), -1)
            while slot >= 0:
                p = tl.where(v == tl.load(tokens + b * slots + slot).to(tl.int32), 0.0, p)
                slot = tl.load(sibling + b * slots + slot).to(tl.int32)
            total += tl.sum(p, axis=0)
        if total == 0.0:
            removing = 0
            for low in range(0, vocabulary, BLOCK):
                v = low + tl.arange(0, BLOCK)
                whole = tl.load(target + (b * slots + here) * vocabulary + v, mask=v < vocabulary, other=0.0)
                total += tl.sum(whole.to(tl.float32), axis=0)
        passed = 0.0
        last = -1
        low = 0
        while (found < 0) & (low < vocabulary):
            v = low + tl.arange(0, BLOCK)
            p = tl.load(target + (b * slots + here) * vocabulary + v, mask=v < vocabulary, other=0.0).to(tl.float32)
            slot = tl.where(removing != 0, tl.load(child + b * slots + here).to(tl.int32), -1)
            while slot >= 0:
                p = tl.where(v == tl.load(tokens + b * slots + slot).to(tl.int32), 0.0, p)
                slot = tl.load(sibling + b * slots + slot).to(tl.int32)
            reached = (passed + tl.cumsum(p, axis=0) > coin * total) & (p > 0.0)
            first = tl.min(tl.where(reached, v, vocabulary), axis=0)
            found = tl.where(first < vocabulary, first, found)
            last = tl.maximum(last, tl.max(tl.where(p > 0.0, v, -1), axis=0))
            passed += tl.sum(p, axis=0)
            low += BLOCK
        found = tl.where(found < 0, last, found)
    refused = found < 0
    for i in range(0, depth + 1):
        if refused | (i > level):
            tl.store(path + b * (depth + 1) + i, -1)
    tl.store(accepted + b, tl.where(refused, -1, level).to(tl.int64))
    tl.store(following + b, found.to(tl.int64))
