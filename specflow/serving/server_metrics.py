"""A server's counters and gauges: Prometheus text at ``/metrics``, else the little that ``/server_info`` says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from specflow.targets.retrying import ServerError, failure_name, said

COUNTERS = {
    "tokens": "sglang:generation_tokens_total",
    "requests": "sglang:num_requests_total",
    "rounds": "sglang:spec_verify_calls_total",
    "prompt_tokens": "sglang:prompt_tokens_total",
}
GAUGES = {
    "accept_length": "sglang:spec_accept_length",
    "accept_rate": "sglang:spec_accept_rate",
    "draft_tokens": "sglang:spec_num_draft_tokens",
    "throughput": "sglang:gen_throughput",
    "running": "sglang:num_running_reqs",
    "queued": "sglang:num_queue_reqs",
}
ADDED = frozenset({"throughput", "running", "queued"})
"""Gauges of which the ranks' values are added; of the others the mean is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Of requests that ended."""

    tokens: float
    requests: float
    rounds: float
    prompt_tokens: float

    def minus(self, other: Counters) -> Counters:
        return Counters(**{name: getattr(self, name) - getattr(other, name) for name in COUNTERS})

    def started_after(self, other: Counters) -> bool:
        """Whether the server began to count anew since ``other``: counters only grow."""
        return any(now < before for now, before in zip(astuple(self), astuple(other), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    counters: Counters | None
    gauges: Mapping[str, float]


def fetch(url: str, *, api_key: str | None = None, timeout: float) -> Published:
    """One look. Raises ``ServerError`` where nothing answers, or it is no SGLang server that speculates."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(base_url=url, timeout=timeout, trust_env=False, headers=headers, follow_redirects=True) as http:
        text = _get(http, "/metrics", key=api_key, optional=True)
        if text is not None:
            return parse(text.text, where=f"{url}/metrics")
        info = _get(http, "/server_info", key=api_key)
    assert info is not None  # not optional
    try:
        return from_server_info(info.json())
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise ServerError(
            f"{url}: expected /metrics (start the server with --enable-metrics), or an average accept length in "
            f"/server_info; found {error}"
        ) from error


def _get(http: httpx.Client, path: str, *, key: str | None, optional: bool = False) -> httpx.Response | None:
    try:
        response = http.get(path)
    except httpx.HTTPError as error:
        raise ServerError(f"{http.base_url} does not answer ({failure_name(error)})") from error
    if optional and response.status_code == 404:
        return None
    if not response.is_success:
        raise ServerError(f"{http.base_url}{path.lstrip('/')}: {said(response, key=key)}")
    return response


def parse(text: str, *, where: str) -> Published:
    """Prometheus text. Counters are summed over their labels (models, ranks, streaming or not).

    A server that has not finished a request yet shows no counter: that is zero. Raises ``ServerError`` on text that is
    none, or without any metric of SGLang's.
    """
    values: dict[str, list[float]] = defaultdict(list)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values[sample.name].append(sample.value)
    except ValueError as error:
        raise ServerError(f"{where}: expected Prometheus text, found something else ({error})") from error
    if not any(name.startswith("sglang:") for name in values):
        raise ServerError(f"{where}: expected metrics of SGLang (sglang:...), found {len(values)} others")
    counted = Counters(**{ours: sum(values[theirs]) for ours, theirs in COUNTERS.items()})
    found = {ours: values[theirs] for ours, theirs in GAUGES.items() if values[theirs]}
    return Published(
        counters=counted,
        gauges={name: sum(v) if name in ADDED else sum(v) / len(v) for name, v in found.items()},
    )


def from_server_info(info: Mapping[str, Any]) -> Published:
    """The mean accept length since the server's start or its last flush; ``KeyError`` where it says none."""
    found = [state["avg_spec_accept_length"] for state in info["internal_states"] if "avg_spec_accept_length" in state]
    if not found:
        raise KeyError("avg_spec_accept_length")
    gauges = {"accept_length": sum(found) / len(found)}
    if info.get("speculative_num_draft_tokens"):
        gauges["draft_tokens"] = float(info["speculative_num_draft_tokens"])
    return Published(counters=None, gauges=gauges)
