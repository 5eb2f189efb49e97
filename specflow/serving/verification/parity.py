"""Two claims about a drafter: its export is the trained network, and decoding computes what training computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from specflow.drafters.base import Inspectable
from specflow.serving.draft import read_tensors
from specflow.serving.layouts.registry import get_layout
from specflow.serving.verification.blocks import Anchor, decoding_hidden, rounds_of, training_hidden
from specflow.serving.verification.check import Check

TRAIN_SERVE_LIMIT = 1e-4
"""Relative error of hidden states between the training and the decoding forward, fp32.

METHODS 9.2 states 1e-5 for one forward. Here the prefix is committed in many pieces and multiplied by kernels for other
numbers of rows, and the error grows with depth; a wrong mask, position or scale gives more than 1e-2.
"""
EXPORT_LIMIT = {"float32": 0.0, "bfloat16": 0.05}
"""Median relative error of a block's hidden states that rounding every weight to the dtype may cause.

Not the largest: a drafter that feeds itself states without a norm amplifies rounding at single places.
"""
TIE_LIMIT = 1e-4
"""Logit gap, relative to the largest logit, under which two fp32 computations may choose differently."""
PROPOSALS_EQUAL = 0.9
"""Smallest share of equal proposals after rounding the weights."""
SHOWN = 5


def export_as_drafter(draft: Path, drafter: Path, directory: Path, *, cast_only: bool = False) -> Path:
    """Write the export back as a drafter directory, so that it loads like one.

    ``draft``: the exported directory; ``drafter``: the trained one, for its manifest. With ``cast_only`` the weights
    are the trained ones rounded to the export's dtype and the geometry is the trained one: what the export must be.
    """
    from safetensors.torch import load_file, save_file

    layout = get_layout(json.loads((drafter / "manifest.json").read_text(encoding="utf-8"))["method"])

    config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
    directory.mkdir(parents=True, exist_ok=True)
    if cast_only:
        geometry = json.loads((drafter / "config.json").read_text(encoding="utf-8"))
        tensors = layout.export_tensors(load_file(str(drafter / "model.safetensors")), dtype=config["dtype"])
    else:
        geometry = layout.geometry_of(config)
        tensors = read_tensors(draft)
    (directory / "config.json").write_text(json.dumps(geometry), encoding="utf-8")
    save_file(layout.drafter_tensors(tensors), str(directory / "model.safetensors"))
    (directory / "manifest.json").write_bytes((drafter / "manifest.json").read_bytes())
    return directory


def as_stretched(draft: Path, drafter: Path, directory: Path) -> Path:
    """The trained drafter with the positions of its export: itself, unless ``export.yarn_factor`` stretched them."""
    stated = json.loads((draft / "manifest.json").read_text(encoding="utf-8"))
    if not stated.get("stretched"):
        return drafter
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("model.safetensors", "manifest.json"):
        (directory / name).write_bytes((drafter / name).read_bytes())
    (directory / "config.json").write_text(json.dumps(stated["geometry"]), encoding="utf-8")
    return directory


def check_export(
    anchors: Sequence[Anchor], *, trained: Inspectable, cast: Inspectable, exported: Inspectable, dtype: str
) -> Check:
    """Compare proposers of the trained drafter, of its weights cast to ``dtype``, and of the export read back."""
    errors, differing, equal, total = [], 0, 0, 0
    failures: list[str] = []
    for anchor in anchors:
        want, same, found = (decoding_hidden(p, anchor) for p in (trained, cast, exported))
        errors.append(relative_error(found, want))
        proposals = exported.score(found).argmax(-1) == trained.score(want).argmax(-1)
        equal, total = equal + int(proposals.sum()), total + proposals.numel()
        if not torch.equal(found, same):
            differing += 1
            failures.append(f"{anchor}: the export differs from the trained weights in {dtype}")
    worst, typical = max(errors, default=float("nan")), median(errors or [float("nan")])
    if typical > EXPORT_LIMIT[dtype]:
        failures.append(f"median relative error {typical:.3g} to the trained drafter")
    share = equal / max(total, 1)
    if share < PROPOSALS_EQUAL:
        failures.append(f"only {share:.1%} of the proposals are the trained drafter's")
    return Check(
        name="export",
        what="The export, read back, is the trained drafter",
        passed=bool(anchors) and not failures,
        numbers={
            "blocks": len(errors),
            "blocks_not_bit_equal_after_cast": differing,
            "median_relative_error": typical,
            "largest_relative_error": worst,
            "equal_proposals": share,
            "dtype": dtype,
        },
        limit=f"bit-equal to the trained weights in {dtype}, median relative error <= {EXPORT_LIMIT[dtype]}",
        failures=failures[:SHOWN],
    )


def check_train_serve(
    anchors: Sequence[Anchor],
    *,
    method: str,
    network: nn.Module,
    proposer: Inspectable,
    embed: Callable[[Tensor], Tensor],
) -> Check:
    """METHODS 9.2: the training forward with one anchor equals the incremental one, prefix cut into rounds."""
    errors, differing, ties, failures = [], 0, 0, []
    for anchor in anchors:
        want = training_hidden(method, network, embed, anchor)
        found = decoding_hidden(proposer, anchor, cuts=rounds_of(anchor, largest=proposer.num_proposals + 1))
        errors.append(relative_error(found, want))
        if not errors[-1] <= TRAIN_SERVE_LIMIT:
            failures.append(f"{anchor}: relative error {errors[-1]:.3g}")
        for row, gap in proposal_gaps(proposer.score(want), proposer.score(found)):
            differing += 1
            ties += gap <= TIE_LIMIT
            if gap > TIE_LIMIT:
                failures.append(f"{anchor}, proposal {row + 1}: other token, relative logit gap {gap:.3g}")
    return Check(
        name="train-serve",
        what="Decoding computes what training computed, with the prefix cut into rounds",
        passed=bool(anchors) and not failures,
        numbers={
            "blocks": len(errors),
            "largest_relative_error": max(errors, default=float("nan")),
            "differing_proposals": differing,
            "of_these_ties": ties,
        },
        limit=f"relative error <= {TRAIN_SERVE_LIMIT}, equal proposals",
        failures=failures[:SHOWN],
    )


def relative_error(found: Tensor, want: Tensor) -> float:
    """Norm of the difference over the norm of ``want``; infinite if either is not finite."""
    error = float((found.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30))
    return error if error == error else float("inf")


def proposal_gaps(want_MV: Tensor, found_MV: Tensor) -> list[tuple[int, float]]:
    """Rows whose argmax differs, with the gap of the two tokens under ``want`` relative to its largest logit."""
    chosen, other = want_MV.argmax(-1), found_MV.argmax(-1)
    rows = (chosen != other).nonzero().flatten().tolist()
    scale = want_MV.abs().amax(-1).clamp_min(1e-30)
    return [(r, float((want_MV[r, chosen[r]] - want_MV[r, other[r]]) / scale[r])) for r in rows]
