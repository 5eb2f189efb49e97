"""``load``: a server with the drafter and one without, under the load that users bring."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, model_validator

from specflow.config.base import NOT_IN_KEY, InputFile, Section, wrong
from specflow.config.sampling import SamplingParams
from specflow.config.sglang import BaselineServer, DraftServer, RootUrl

CacheState = Literal["cold", "shared", "warm"]
Number = TypeVar("Number", int, float)
SamplingName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]


def _rising(values: tuple[Number, ...]) -> tuple[Number, ...]:
    if list(values) != sorted(set(values)):
        raise wrong("out of order", found=list(values), expected="different numbers in increasing order")
    return values


def _for_a_server(settings: dict[str, SamplingParams]) -> dict[str, SamplingParams]:
    """A server draws proposals as its drafter does: nothing of a request says how."""
    if drawn := [name for name, sampling in settings.items() if sampling.draft_temperature]:
        raise wrong("a server decides how proposals are drawn", found=", ".join(drawn), expected="no draft_temperature")
    return settings


class LoadShape(Section):
    """What is asked of a server, and how often."""

    concurrency: Annotated[tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(_rising)] = Field(
        default=(1, 8), description="Requests in flight in a closed loop, one measurement each; []: none."
    )
    rates: Annotated[tuple[Annotated[float, Field(gt=0)], ...], AfterValidator(_rising)] = Field(
        default=(), description="Requests per second in an open loop (Poisson), one measurement each."
    )
    trace: InputFile | None = Field(
        default=None,
        description='JSON lines {"seconds": s}, in order: an open loop in which a request is sent s seconds after the '
        "start.",
    )
    requests: int | None = Field(
        default=None,
        ge=1,
        description="Requests of a measurement; none: every prompt, and three per request in flight.",
    )
    max_new_tokens: int = Field(default=256, ge=2, description="Longest answer in tokens; end tokens are respected.")
    sampling: Annotated[dict[SamplingName, SamplingParams], AfterValidator(_for_a_server)] = Field(
        default={"greedy": SamplingParams()}, min_length=1, description="Ways to sample, by name; each is measured."
    )
    mix_kinds: bool = Field(default=False, description="Also measure all kinds of prompts together, as one data set.")
    cache: CacheState = Field(
        default="cold",
        description="`cold`: no prompt finds a prefix in the cache; `shared`: it is emptied, and prompts may share "
        "prefixes; `warm`: every prompt was read before.",
    )
    warmup_requests: int = Field(default=4, ge=0, description="Requests before the clock starts, for each server.")
    repeats: int = Field(default=3, ge=1, description="Times the whole matrix is measured.")
    max_failures: float = Field(
        default=0.0, ge=0, lt=1, description="Share of a measurement's requests that may fail; above it there is none."
    )
    seed: int = Field(default=0, description="Of arrivals and of resampling.")

    @model_validator(mode="after")
    def _something_to_measure(self) -> LoadShape:
        if not self.concurrency and not self.rates and self.trace is None:
            raise wrong("nothing to measure", found="no load", expected="concurrency, rates or trace")
        return self


class LoadParams(LoadShape):
    """Benchmark a server with the drafter against one without."""

    sglang: DraftServer = Field(default=DraftServer(), description="The server with the drafter.")
    baseline: BaselineServer = Field(default=BaselineServer(), description="The server without.")
    together: bool = Field(
        default=False,
        description="Both servers run at the same time, idle in turn; without it one is ended before the other starts.",
    )
    prompts_per_kind: int | None = Field(default=None, ge=1, description="Held-out prompts per kind; none: all.")
    unproven: bool = Field(
        default=False, description="Measure a server that no `parity` has proved; the record says so."
    )
    cross_check: bool = Field(
        default=False, description="Also run SGLang's own bench tool against the server with the drafter."
    )


class MeasureParams(LoadShape):
    """Benchmark a running server."""

    url: RootUrl = Field(description="Address of the server.")
    baseline_url: RootUrl | None = Field(
        default=None, description="Address of the same server without a drafter; measured in turn."
    )
    model: str | None = Field(default=None, description="Name of the model; none: the only one the server lists.")
    api_key_file: InputFile | None = Field(
        default=None, description="File with the key; it is sent to the server only.", json_schema_extra=NOT_IN_KEY
    )
    timeout: float = Field(
        default=600.0, gt=0, description="Seconds to wait for one answer.", json_schema_extra=NOT_IN_KEY
    )
