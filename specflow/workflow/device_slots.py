"""One stage at a time per device, over all runs that one Prefect server knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

LEASE_SECONDS = 60.0
"""How long a slot outlives a holder that was killed. Prefect renews the lease while the holder lives."""


@contextmanager
def device_slot(name: str | None) -> Iterator[None]:
    """Hold the only slot of a Prefect concurrency limit, which is made if it is not there; none: nothing to hold."""
    if name is None:
        yield
        return
    from prefect.concurrency.sync import concurrency

    _require_limit(name)
    with concurrency(name, lease_duration=LEASE_SECONDS, strict=True, raise_on_lease_renewal_failure=False):
        yield


def _require_limit(name: str) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound:
            try:
                client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
            except ObjectAlreadyExists:  # another run was faster
                return
