"""What may be done with each stage: which are retried, which have a device to themselves, how long a try may take."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from specflow.config.operations import OperationsParams
from specflow.workflow.graph import Node

NOT_RETRIED = {
    "verify": "a proof of equality that fails once is a finding",
    "parity": "so is a server that once answers otherwise",
    "bench": "a failed server is a failure, never tried until it passes",
    "compare": "the same",
    "gate": "a decision is made once",
}
"""Stages whose failure, even by accident, is looked at. All others continue from their scratch, or start again."""

ON_DEVICE = ("regenerate", "capture", "train", "calibrate", "profile", "verify", "parity", "bench", "compare")
"""Stages that run the target or a drafter: they would disturb each other, and each other's times, on one device."""

PASSING = (errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENETDOWN, errno.ENETUNREACH)
"""Errors of the system that may be gone the next time, beside broken connections and time-outs."""

ACCELERATORS = ("/dev/nvidia0", "/dev/kfd", "/dev/accel0")


def retries(node: Node, operations: OperationsParams) -> int:
    """How many further tries a node has."""
    return 0 if node.stage in NOT_RETRIED else operations.retries


def delays(operations: OperationsParams) -> list[float]:
    """Seconds before each further try."""
    return [operations.retry_delay * 2**number for number in range(operations.retries)]


def time_limit(node: Node, operations: OperationsParams) -> float | None:
    """Seconds that a try may take; what is stated for the node comes before what is stated for the stage."""
    limits = operations.time_limits
    return limits.get(node.id, limits.get(node.stage))


def device(node: Node, operations: OperationsParams) -> str | None:
    """Name of the concurrency limit that the node needs a slot of."""
    if node.stage not in ON_DEVICE or operations.device is None:
        return None
    if operations.device != "auto":
        return f"specflow-{operations.device}"
    return f"specflow-{socket.gethostname()}" if any(Path(path).exists() for path in ACCELERATORS) else None


def by_accident(error: Exception) -> bool:
    """Whether a stage that failed with this may pass the next time."""
    # httpx is not imported for this: its errors are known by where they come from.
    connection = type(error).__module__.partition(".")[0] in ("httpx", "httpcore") and "Error" in type(error).__name__
    passing = isinstance(error, OSError) and error.errno in PASSING
    return connection or passing or isinstance(error, ConnectionError | TimeoutError | MemoryError)
