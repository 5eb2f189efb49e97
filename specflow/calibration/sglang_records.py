"""Records that an SGLang server collected (``SGLANG_DSPARK_STS_COLLECT_PATH``): ``<stem>.<n>.pt`` of ``logits`` and
``prefix_mask``, both ``[n, M]``.

The files do not say which request a row is of, so runs of consecutive rows stand in for requests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specflow.calibration.records import ConfidenceRecords, RecordsError, joined, value_problems

ROWS_OF_A_REQUEST = 64


def shard_paths(place: Path) -> list[Path]:
    """The file itself, or a directory's ``.pt`` files in the order they were written."""
    if place.is_file():
        return [place]
    return sorted(place.glob("*.pt"), key=lambda p: [int(s) if s.isdigit() else s for s in re.split(r"(\d+)", p.name)])


def read_shards(paths: Sequence[Path]) -> ConfidenceRecords:
    """Raises ``RecordsError`` with every reason, over all files, why they must not be calibrated on."""
    import torch

    problems: list[str] = [] if paths else ["no .pt files: expected those that the server wrote"]
    parts: list[ConfidenceRecords] = []
    for path in paths:
        try:
            shard = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            problems.append(f"{path.name}: cannot be read, perhaps cut short: {type(error).__name__}: {error}")
            continue
        found = _shard_problems(shard, path.name)
        problems += found
        if not found:
            parts.append(_records(shard))
    sizes = sorted({part.num_proposals for part in parts})
    if len(sizes) > 1:
        problems.append(f"the files have {' and '.join(map(str, sizes))} proposals: calibrate each drafter alone")
    if not problems and not sum(part.rounds for part in parts):
        problems.append("the files hold no rounds")
    if problems:
        raise RecordsError(problems)
    return joined(parts)


def _records(shard: Any) -> ConfidenceRecords:
    mask_NM = shard["prefix_mask"].numpy()
    return ConfidenceRecords(
        logits_NM=shard["logits"].float().numpy(),
        accepted_N=mask_NM.sum(axis=1).astype(np.int64),
        request_N=np.arange(len(mask_NM)) // ROWS_OF_A_REQUEST,
    )


def _shard_problems(shard: Any, name: str) -> list[str]:
    if not isinstance(shard, dict) or not {"logits", "prefix_mask"} <= shard.keys():
        return [f"{name}: expected `logits` and `prefix_mask`"]
    logits, mask = shard["logits"], shard["prefix_mask"]
    if logits.ndim != 2 or logits.shape != mask.shape:
        shapes = f"{list(logits.shape)} and {list(mask.shape)}"
        return [f"{name}: truncated: logits and prefix_mask are {shapes}; expected one shape, rounds by proposals"]
    logits_NM, mask_NM = logits.float().numpy(), mask.float().numpy()
    found = value_problems(logits_NM, where=name)
    if not np.isin(mask_NM, (0.0, 1.0)).all():
        found.append(f"{name}: prefix_mask has values other than 0 and 1")
    elif (np.diff(mask_NM, axis=1) > 0).any():
        rows = int((np.diff(mask_NM, axis=1) > 0).any(axis=1).sum())
        found.append(f"{name}: {rows} of {len(mask_NM)} rounds accept a position after one that was not accepted")
    padded = int((logits_NM == 0).all(axis=1).sum())
    if padded:
        found.append(
            f"{name}: {padded} of {len(logits_NM)} rounds have only zeros as logits: padding of a scheduled run; "
            "collect with SGLANG_RAGGED_VERIFY_MODE=cap-accept"
        )
    return found
