"""Which rounds a temperature is chosen on, and which judge the choice: whole requests, by a seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specflow.calibration.records import ConfidenceRecords, RecordsError


def split_requests(
    records: ConfidenceRecords, *, validation_share: float, seed: int
) -> tuple[ConfidenceRecords, ConfidenceRecords]:
    """Rounds to fit on and rounds to validate with; no request is in both.

    Raises ``RecordsError`` where there are fewer than two requests.
    """
    requests = np.unique(records.request_N)
    if len(requests) < 2:
        raise RecordsError(
            ["all rounds are of one request: expected at least 2, one to fit on and one to validate with"]
        )
    order = np.random.default_rng(seed).permutation(requests)
    counts = np.bincount(records.request_N, minlength=int(requests.max()) + 1)[order]
    wanted = validation_share * records.rounds
    # So many requests that their rounds come nearest to the share, and at least one on either side.
    reached = np.cumsum(counts)
    take = int(np.clip(np.abs(reached - wanted).argmin() + 1, 1, len(requests) - 1))
    validation: NDArray[np.bool_] = np.isin(records.request_N, order[:take])
    return records.take(~validation), records.take(validation)
