"""What went wrong with stored rows that are not those of their document, said by name.

Legend: T tokens, H hidden size. ``stored_TH`` is what is to be explained, ``wanted_TH`` what the document alone gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST_SHIFT = 8
MOST = 0.9
"""Share of rows that an explanation must make right."""
ALIKE = 0.5
"""Median relative difference below which rows are those of the token, computed otherwise."""
Norm = Callable[[Tensor], Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The document alone: every state that rows can be mistaken for."""

    states: Mapping[int, Tensor]
    """Residual stream by layer; -1 is what the first layer reads, the largest is before the final norm. ``[T, H]``."""

    def nearest(self, stored_TH: Tensor, *, own: int, tolerance: float) -> tuple[int, float]:
        """The layer whose rows are nearest, and its largest error; ``own`` unless another one fits."""
        errors = {k: row_errors(stored_TH, state) for k, state in self.states.items()}
        nearest = min(errors, key=lambda k: float(errors[k].median()))
        if _share(errors[nearest], tolerance) < MOST:
            nearest = own
        return nearest, float(errors[nearest].max())


def layer_name(layer: int) -> str:
    return f"layer {layer}" if layer >= 0 else "the embedding (what layer 0 reads)"


def row_errors(one_TH: Tensor, two_TH: Tensor) -> Tensor:
    """``[T]`` |one - two| / |two|; infinite where a value is not finite."""
    one, two = one_TH.float(), two_TH.float()
    errors = (one - two).norm(dim=-1) / two.norm(dim=-1).clamp_min(1e-12)
    return torch.where(errors.isnan(), torch.inf, errors)


def explain(stored_TH: Tensor, wanted_TH: Tensor, *, tolerance: float, final_norm: Norm | None = None) -> str:
    """The first fault that turns ``stored_TH`` into ``wanted_TH`` within ``tolerance``; else which rows differ."""
    for found in _faults(stored_TH, wanted_TH, tolerance, final_norm):
        return found
    return _which_rows(stored_TH, wanted_TH, tolerance)


def _faults(stored_TH: Tensor, wanted_TH: Tensor, tolerance: float, final_norm: Norm | None) -> Iterator[str]:
    def fits(candidate_TH: Tensor, wanted: Tensor = wanted_TH) -> bool:
        return _share(row_errors(candidate_TH, wanted), tolerance) >= MOST

    broken = ~stored_TH.isfinite().all(dim=-1)
    dtype = next((name for name, candidate in _reinterpreted(stored_TH) if fits(candidate)), None)
    if dtype:
        yield dtype
    if broken.any():
        yield f"{_rows(broken)} not finite"
    if fits(*_as_rounded(stored_TH, wanted_TH)):
        yield "the bits of bfloat16 values were read as float16"
    yield from _empty_rows(stored_TH, wanted_TH, tolerance)
    normed = final_norm(stored_TH) if final_norm else None
    if normed is not None and fits(normed):
        yield "they are the states before the final norm; the head reads those after it"
    yield from _later_shift(stored_TH, wanted_TH, tolerance)
    for shift in _shifts(stored_TH.shape[0]):
        one, two = _shifted(stored_TH, wanted_TH, shift)
        if fits(one, two):
            yield f"rows are shifted by {shift:+d}: row t holds the state of token {_token(shift)}"
    scale_T = (stored_TH.float() * wanted_TH.float()).sum(-1) / wanted_TH.float().square().sum(-1).clamp_min(1e-24)
    if fits(stored_TH.float() / torch.where(scale_T > 0, scale_T, 1.0)[:, None]):
        low, high = float(scale_T.min()), float(scale_T.max())
        factor = f"{float(scale_T.median()):.3g}" if high - low <= tolerance * high else f"{low:.3g} to {high:.3g}"
        yield f"values are scaled by {factor}"


def _reinterpreted(stored_TH: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The same bits read in another way."""
    bits = stored_TH.bfloat16().contiguous()
    yield "the bits of float16 values were read as bfloat16", bits.view(torch.float16)
    pairs = bits.view(torch.uint8).reshape(*bits.shape, 2).flip(-1)
    yield "the two bytes of each value are swapped", pairs.flatten(-2).view(torch.bfloat16)


def _as_rounded(stored_TH: Tensor, wanted_TH: Tensor) -> tuple[Tensor, Tensor]:
    """What bfloat16 bits read as float16 give; where that is not finite, nothing can be said."""
    misread = wanted_TH.bfloat16().contiguous().view(torch.float16).float()
    known = misread.isfinite()
    return torch.where(known, stored_TH.float(), 0.0), torch.where(known, misread, 0.0)


def _empty_rows(stored_TH: Tensor, wanted_TH: Tensor, tolerance: float) -> Iterator[str]:
    """Rows of zeros, or equal to the row before, where the document's are not; and whether they push later ones on."""
    stored = stored_TH.float()
    zero = (stored == 0).all(dim=-1) & (wanted_TH.float() != 0).any(dim=-1)
    same = torch.zeros_like(zero)
    same[1:] = (stored[1:] == stored[:-1]).all(dim=-1) & (wanted_TH[1:] != wanted_TH[:-1]).any(dim=-1)
    for what, rows in (("zero", zero), ("equal to the row before", same & ~zero)):
        if not rows.any():
            continue
        first, count = int(rows.nonzero()[0]), int(rows.sum())
        rest = stored_TH[first + count :]
        moved = wanted_TH[first : first + rest.shape[0]]
        if rest.numel() and _share(row_errors(rest, moved), tolerance) >= MOST:
            yield f"{_rows(rows)} {what}, and later rows are {count} late: padding stands among them"
        else:
            yield f"{_rows(rows)} {what}"


def _later_shift(stored_TH: Tensor, wanted_TH: Tensor, tolerance: float) -> Iterator[str]:
    """Right up to a row, shifted from there on."""
    wrong = (row_errors(stored_TH, wanted_TH) > tolerance).nonzero()
    if not wrong.numel() or not int(wrong[0]):
        return
    first = int(wrong[0])
    for shift in _shifts(stored_TH.shape[0] - first):
        begin = first + max(shift, 0)
        one, two = stored_TH[begin:], wanted_TH[begin - shift :]
        rows = min(one.shape[0], two.shape[0])
        if rows and _share(row_errors(one[:rows], two[:rows]), tolerance) >= MOST:
            yield f"from row {first} on rows are shifted by {shift:+d}: row t holds the state of token {_token(shift)}"


def _which_rows(stored_TH: Tensor, wanted_TH: Tensor, tolerance: float) -> str:
    errors = row_errors(stored_TH, wanted_TH)
    wrong = errors > tolerance
    if float(errors.median()) <= ALIKE and float(errors.max()) <= 1.0:
        return f"{_rows(wrong)} alike but not equal: other weights or another arithmetic than declared"
    return f"{_rows(wrong)} those of another document or position"


def _rows(which_T: Tensor) -> str:
    """``rows 3 to 7 are``; how many where they do not follow each other."""
    indices = which_T.nonzero().flatten().tolist()
    total = which_T.numel()
    if len(indices) == total:
        return f"all {total} rows are"
    if len(indices) == 1:
        return f"row {indices[0]} of {total} is"
    if indices[-1] - indices[0] + 1 == len(indices):
        return f"rows {indices[0]} to {indices[-1]} of {total} are"
    return f"{len(indices)} of {total} rows, first row {indices[0]}, are"


def _shifts(rows: int) -> Iterator[int]:
    for step in range(1, min(LARGEST_SHIFT, rows // 2) + 1):
        yield from (step, -step)


def _shifted(stored_TH: Tensor, wanted_TH: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """The rows that both have if row t of ``stored`` holds the state of token t - shift."""
    if shift > 0:
        return stored_TH[shift:], wanted_TH[:-shift]
    return stored_TH[:shift], wanted_TH[-shift:]


def _token(shift: int) -> str:
    return f"t {'-' if shift > 0 else '+'} {abs(shift)}"


def _share(errors_T: Tensor, tolerance: float) -> float:
    return float((errors_T <= tolerance).float().mean()) if errors_T.numel() else 0.0
