"""Triton kernel: one program per request walks along its chain and draws the token after it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def chain_kernel(
    draft, target, choices, greedy, coins, draft_q, judged, accepted, following, proposals, rows, coin_count,
    vocabulary, DRAWN: tl.constexpr, CUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    limit = proposals
    if CUT:
        limit = tl.load(judged + b).to(tl.int32)
    is_greedy = tl.load(greedy + b) != 0
    row = 0
    walking = 1
    refused = 0
    rejected = b.to(tl.int32) * 0 - 1  # the token that a sampled row refused; a tensor, as masks are made of it
    token = -1
    while (walking != 0) & (row < limit):
        proposed = tl.load(draft + b * proposals + row).to(tl.int32)
        if is_greedy:
            choice = tl.load(choices + b * rows + row).to(tl.int32)
            refused = (choice < 0).to(tl.int32)
            walking = (choice == proposed).to(tl.int32)
        else:
            p = tl.load(target + (b * rows + row) * vocabulary + proposed).to(tl.float32)
            q = p * 0.0 + 1.0
            if DRAWN:
                q = tl.load(draft_q + (b * proposals + row) * vocabulary + proposed).to(tl.float32)
            refused = 1 - ((p >= 0.0) & (q > 0.0)).to(tl.int32)
            walking = (tl.load(coins + b * coin_count + row) * q < p).to(tl.int32)
            rejected = tl.where(walking != 0, -1, proposed)
        walking = walking * (1 - refused)
        row += walking
    if refused == 0:
        if is_greedy:
            token = tl.load(choices + b * rows + row).to(tl.int32)
        else:
            coin = tl.load(coins + b * coin_count + coin_count - 1)
            # First the residual's mass; where rounding leaves none, p and q are equal, and p is drawn from.
            total = 0.0
            for low in range(0, vocabulary, BLOCK):
                v = low + tl.arange(0, BLOCK)
                p_tile = tl.load(target + (b * rows + row) * vocabulary + v, mask=v < vocabulary, other=0.0).to(
                    tl.float32
                )
                if DRAWN:
                    inside = v < tl.where(rejected >= 0, vocabulary, 0)
                    q_tile = tl.load(draft_q + (b * proposals + row) * vocabulary + v, mask=inside, other=0.0)
                    rest = p_tile - q_tile.to(tl.float32)
                    p_tile = tl.where(rest == rest, tl.maximum(rest, 0.0), rest)
                else:
                    p_tile = tl.where(v == rejected, 0.0, p_tile)
                total += tl.sum(p_tile, axis=0)
            if total == 0.0:
                rejected = rejected * 0 - 1
                for low in range(0, vocabulary, BLOCK):
                    v = low + tl.arange(0, BLOCK)
                    p_all = tl.load(target + (b * rows + row) * vocabulary + v, mask=v < vocabulary, other=0.0)
                    total += tl.sum(p_all.to(tl.float32), axis=0)
            wanted = coin * total
            passed = 0.0
            last = -1
            low = 0
            while (token < 0) & (low < vocabulary):
                v = low + tl.arange(0, BLOCK)
                p_tile = tl.load(target + (b * rows + row) * vocabulary + v, mask=v < vocabulary, other=0.0).to(
                    tl.float32
                )
                if DRAWN:
                    inside = v < tl.where(rejected >= 0, vocabulary, 0)
                    q_tile = tl.load(draft_q + (b * proposals + row) * vocabulary + v, mask=inside, other=0.0)
                    p_tile = tl.maximum(p_tile - q_tile.to(tl.float32), 0.0)
                else:
                    p_tile = tl.where(v == rejected, 0.0, p_tile)
                reached = (passed + tl.cumsum(p_tile, axis=0) > wanted) & (p_tile > 0.0)
                first = tl.min(tl.where(reached, v, vocabulary), axis=0)
                token = tl.where(first < vocabulary, first, token)
                last = tl.maximum(last, tl.max(tl.where(p_tile > 0.0, v, -1), axis=0))
                passed += tl.sum(p_tile, axis=0)
                low += BLOCK
            token = tl.where(token < 0, last, token)
            token = tl.where(total == total, token, -1)  # NaN
    tl.store(accepted + b, tl.where(token < 0, -1, row).to(tl.int64))
    tl.store(following + b, token.to(tl.int64))
