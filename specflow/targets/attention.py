"""The attention of one target pass over the engine's cache, registered with transformers by name.

Legend: B requests, H query heads, N key heads, G = H / N, T rows of the pass, S cached positions, D head size.
No mask function is registered under the name, so transformers builds no mask of its own: what is
visible follows from the lengths in :class:`AttentionPass`, which travels to every layer as a keyword.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMPLEMENTATION = "specflow"
FOLD_ROWS = 16
"""Up to this many rows the query heads of one key head are folded into rows: no repeated keys, one product."""


class AttentionPass:
    """Which cached positions the rows of one pass see: row i of request b sees ``0 .. committed[b] + i``."""

    __slots__ = ("_masks", "_rotary", "length", "position_ids", "positions_BT", "rows", "slots_BT", "start")

    def __init__(self, committed: list[int], rows: int, device: torch.device) -> None:
        self.rows = rows
        self.length = max(committed) + rows
        """S, cached positions any row of the pass may see."""
        self.start: int | None = committed[0] if min(committed) == max(committed) else None
        """Committed length if it is the same for all requests."""
        if self.start is not None:
            self.positions_BT = torch.arange(self.start, self.length, device=device).expand(len(committed), rows)
        else:
            offsets_B1 = torch.tensor(committed, device=device).unsqueeze(1)
            self.positions_BT = offsets_B1 + torch.arange(rows, device=device)
        self.slots_BT = self.positions_BT
        """Where the rows lie in the cache: behind the committed ones, in their order."""
        self.position_ids = self.positions_BT
        """Of the rows as the model gets them."""
        self._masks: dict[tuple[int | None, int, int, torch.dtype], Tensor] = {}
        self._rotary: tuple[Tensor, Tensor, Tensor] | None = None

    def places(self) -> tuple[Tensor, Tensor]:
        """Request and place in the cache of every row, in shapes that broadcast."""
        requests = torch.arange(self.slots_BT.shape[0], device=self.slots_BT.device)
        return requests.unsqueeze(1), self.slots_BT

    def spread(self, query: Tensor) -> Tensor:
        """Queries as the model gives them to ``[B, H, T, D]``."""
        return query

    def gathered(self, out_BTHD: Tensor) -> Tensor:
        """Inverse of ``spread``, of attention's output ``[B, T, H, D]``."""
        return out_BTHD

    def committable(self, counts_B: Tensor) -> bool:
        """Whether every request has so many rows."""
        return int(counts_B.max()) <= self.rows

    def rotate(self, heads_BTND: Tensor, cos_BTD: Tensor, sin_BTD: Tensor) -> Tensor:
        """Rotary embedding of all heads, halves against halves; the angles are prepared once per pass."""
        half = heads_BTND.shape[3] // 2
        if self._rotary is None or self._rotary[0] is not cos_BTD:
            signed = torch.cat((-sin_BTD[..., :half], sin_BTD[..., half:]), dim=-1)
            self._rotary = (cos_BTD, cos_BTD.unsqueeze(2), signed.unsqueeze(2))
        _key, cos, sin = self._rotary
        swapped = torch.cat((heads_BTND[..., half:], heads_BTND[..., :half]), dim=-1)
        return torch.addcmul(heads_BTND * cos, swapped, sin)

    def first_visible(self, window: int | None) -> int:
        """First cached position that any row sees through a sliding ``window``."""
        return 0 if window is None or self.start is None else max(0, self.start - window + 1)

    def needs_mask(self, window: int | None) -> bool:
        """False if a single row sees everything between ``first_visible`` and the end."""
        return self.rows > 1 or self.start is None

    def is_causal(self, window: int | None) -> bool:
        """True if the plain causal triangle is the mask: nothing committed and no window in reach."""
        return self.start == 0 and (window is None or window >= self.length)

    def mask(self, window: int | None, groups: int, dtype: torch.dtype) -> Tensor:
        """Additive ``[B, 1, groups * T, S']``; built once per pass and shared by the layers."""
        low = self.first_visible(window)
        key = (window, low, groups, dtype)
        if key not in self._masks:
            hidden_BTS = self.hidden(low, window)
            mask = torch.zeros(hidden_BTS.shape, dtype=dtype, device=hidden_BTS.device)
            mask = mask.masked_fill_(hidden_BTS, float("-inf")).unsqueeze(1)
            self._masks[key] = mask.repeat(1, 1, groups, 1)
        return self._masks[key]

    def hidden(self, low: int, window: int | None) -> Tensor:
        """``[B, T, S - low]``: which cached places from ``low`` on a row does not see."""
        slots_S = torch.arange(low, self.length, device=self.positions_BT.device)
        hidden_BTS = slots_S > self.positions_BT.unsqueeze(-1)
        if window is not None:
            hidden_BTS = hidden_BTS | (slots_S <= (self.positions_BT - window).unsqueeze(-1))
        return hidden_BTS


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    specflow_pass: AttentionPass | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """``query [B, H, T, D]`` over the cache's ``key``/``value [B, N, S, D]``; returns ``[B, T, H, D]``.

    Raises ``RuntimeError`` if the model does not hand keywords down to its attention.
    """
    if specflow_pass is None:
        raise RuntimeError(f"the model hands no keyword arguments to its {type(module).__name__}")
    query = specflow_pass.spread(query)
    out = _attended(query, key, value, specflow_pass, scaling=scaling, window=sliding_window, softcap=softcap)
    return specflow_pass.gathered(out), None


def _attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    specflow_pass: AttentionPass,
    *,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    batch, heads, rows, _width = query.shape
    groups = heads // key.shape[1]
    low = specflow_pass.first_visible(window)
    if low:
        key, value = key[:, :, low:], value[:, :, low:]
    if softcap is not None:
        out = _softcapped(query, key, value, specflow_pass, scaling=scaling, window=window, softcap=softcap)
        return out.transpose(1, 2)
    if rows > 1 and specflow_pass.is_causal(window):
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=groups > 1)
        return out.transpose(1, 2)
    fold = groups > 1 and rows <= FOLD_ROWS
    mask = None
    if specflow_pass.needs_mask(window):
        mask = specflow_pass.mask(window, groups if fold else 1, query.dtype)
    if fold:
        folded = query.reshape(batch, key.shape[1], groups * rows, query.shape[3])
        out = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
        return out.reshape(batch, heads, rows, out.shape[3]).transpose(1, 2)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=groups > 1)
    return out.transpose(1, 2)


def _softcapped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    specflow_pass: AttentionPass,
    *,
    scaling: float | None,
    window: int | None,
    softcap: float,
) -> Tensor:
    """Attention with ``softcap * tanh(scores / softcap)``, which no fused kernel of torch offers."""
    batch, heads, rows, width = query.shape
    groups = heads // key.shape[1]
    scale = width**-0.5 if scaling is None else scaling
    folded = query.reshape(batch, key.shape[1], groups * rows, width)
    scores = torch.matmul(folded, key.transpose(2, 3)) * scale
    scores = torch.tanh(scores / softcap) * softcap
    if specflow_pass.needs_mask(window):
        scores = scores + specflow_pass.mask(window, groups, scores.dtype)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value).reshape(batch, heads, rows, value.shape[3])


def register() -> None:
    """Make ``attn_implementation="specflow"`` known to transformers; harmless when repeated."""
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, attention)
