"""``profile``: what a target pass costs, by requests and rows."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from specflow.config.base import NOT_IN_KEY, InputFile, Section, wrong
from specflow.config.regenerate import Precision
from specflow.config.sglang import RootUrl


def _increasing(values: tuple[int, ...]) -> tuple[int, ...]:
    if len(values) < 2 or list(values) != sorted(set(values)) or values[0] < 1:
        raise wrong("not a row of sizes", found=list(values), expected="at least two whole numbers from 1, increasing")
    return values


Sizes = Annotated[tuple[int, ...], AfterValidator(_increasing)]


class RecordingServer(Section):
    """A running SGLang server with DSpark that notes how long its rounds take."""

    url: RootUrl = Field(description="Address of the server.")
    """In the key: another server has other costs."""
    api_key_file: InputFile | None = Field(
        default=None, description="File with the key; it is sent to the server only.", json_schema_extra=NOT_IN_KEY
    )
    timeout: float = Field(
        default=600.0, gt=0, description="Seconds to wait for one answer.", json_schema_extra=NOT_IN_KEY
    )


class ProfileParams(Section):
    """Time target passes by requests and rows."""

    sglang: RecordingServer | None = Field(
        default=None, description="Costs of this server's rounds; none: of target passes of the embedded engine."
    )
    requests: Sizes = Field(default=(1, 2, 4, 8), description="Numbers of requests in a pass.")
    rows: Sizes = Field(default=(1, 2, 3, 4, 6, 8, 12, 16), description="Rows of each request.")
    uneven: bool = Field(
        default=True, description="Also time passes whose requests have different numbers of rows, as a scheduler's."
    )
    context: int = Field(default=128, ge=1, description="Committed positions of a request, on average.")
    spread: float = Field(
        default=0.5,
        ge=0,
        lt=1,
        description="Requests differ in committed positions by up to this share of `context`, as in real batches.",
    )
    samples: int = Field(default=5, ge=2, description="Timed passes of a shape at each visit.")
    visits: int = Field(default=3, ge=1, description="Visits to each shape, in a shuffled order.")
    seed: int = Field(default=0, ge=0, description="Seed of the order.")
    precision: Precision = Field(default="auto", description="Arithmetic of the target's forward pass.")
    threads: int | None = Field(default=None, ge=1, description="CPU threads; none: chosen by a probe.")
    """In the key, unlike elsewhere: it changes what is measured."""
