"""Rounds of a running SGLang server with DSpark, timed by the server itself (contract E.2).

The server notes of every round how many requests ran, how many rows were verified and how long it took from the end of
the round before. It must accept nothing but its own token (``SGLANG_SIMULATE_ACC_LEN=1.0``), so that every round adds
one position to every request, and tell its rounds (``SGLANG_DSPARK_ENABLE_SPS_RECORD=1``). In mode ``static`` a round
verifies every proposal, in ``compact`` as many as it is told to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
import numpy as np

from specflow.costs.timing import Split
from specflow.targets.retrying import ServerError, failure_name, said

RECORD = "dspark_info_record"
NEEDED = {"core", "step_cpu_time"}
STATIC, COMPACT = "static", "compact"
HOW = (
    "start it with SGLANG_DSPARK_ENABLE_SPS_RECORD=1 and SGLANG_SIMULATE_ACC_LEN=1.0, in mode static or compact: "
    "specflow serve EXPORT --mode compact --env SGLANG_DSPARK_ENABLE_SPS_RECORD=1 --env SGLANG_SIMULATE_ACC_LEN=1.0"
)
WARM_ROUNDS = 8
"""First rounds with all requests running, which do not count."""
SPARE_ROUNDS = 24
"""While requests arrive and leave not all of them run."""


class ServedRounds:
    """``Passes`` of :func:`specflow.costs.timing.time_passes`, with ``clock``: preparing a shape runs its rounds on the
    server, and each run of it then takes the seconds that the server noted of one.

    ``context``: tokens of a prompt. ``samples``: rounds that count. Raises ``ServerError`` where the server is no such
    one, or did not run what it was asked for.
    """

    def __init__(
        self, url: str, *, context: int, samples: int, vocab_size: int, timeout: float, key: str | None = None
    ) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=url, timeout=timeout, headers=headers, trust_env=False)
        self._url, self._key, self._context, self._samples = url, key, context, samples
        self._random, self._vocab_size = np.random.default_rng(0), vocab_size
        self._now = 0.0
        self.info = self._info()
        payload = _payload(self.info, url)
        self.mode, self.num_proposals = str(payload["mode"]), int(payload["gamma"])

    def close(self) -> None:
        """A server that verified as many as it was told verifies what pays again."""
        if self.mode == COMPACT:
            self._set("dspark_force_budget_frac", None)
        self._http.close()

    def clock(self) -> float:
        return self._now

    def prepare(self, split: Split) -> Callable[[], object]:
        seconds = deque(self._rounds(len(split), sum(split)))

        def run() -> None:
            self._now += seconds.popleft()

        return run

    def _rounds(self, requests: int, rows: int) -> list[float]:
        """Seconds of ``samples + 1`` rounds in which so many requests ran with so many rows."""
        if self.mode == COMPACT:
            # The server takes the whole part of the share, and no share of nothing.
            share = (rows - requests + 0.5) / (requests * self.num_proposals)
            self._set("dspark_force_budget_frac", min(share, 1.0))
        self._set("dspark_clear_info_records", True)
        wanted = self._samples + 1
        self._generate(requests, WARM_ROUNDS + wanted + SPARE_ROUNDS)
        noted = _payload(self._info(), self._url)["records"]
        full = [r for r in noted if r.get("num_running_reqs") == requests and r.get("step_cpu_ms") is not None]
        steady = full[WARM_ROUNDS : WARM_ROUNDS + wanted]
        if len(steady) < wanted:
            raise ServerError(
                f"{self._url}: {len(full)} rounds with {requests} requests, expected {WARM_ROUNDS + wanted}: raise "
                "--max-running-requests and --max-total-tokens of the server, or ask for fewer requests"
            )
        fewest = min(int(r["num_verify_tokens"]) for r in steady)
        if fewest < rows:
            raise ServerError(f"{self._url}: rounds of {fewest} rows where {requests} requests should have had {rows}")
        return [float(r["step_cpu_ms"]) / 1000.0 for r in steady]

    def _generate(self, requests: int, rounds: int) -> None:
        """Every round gives one token of each; prompts are unlike each other, so that none shares a prefix."""
        ids = self._random.integers(self._vocab_size, size=(requests, self._context)).tolist()
        sampling = {"temperature": 0.0, "max_new_tokens": rounds, "ignore_eos": True}
        self._asked("POST", "/generate", {"input_ids": ids, "sampling_params": sampling})

    def _info(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._asked("GET", "/server_info")
        return found

    def _set(self, name: str, value: object) -> None:
        answers = self._asked("POST", "/set_internal_state", {"server_args": {name: value}})
        answers = answers if isinstance(answers, list) else [answers]
        if not all(a.get("updated") if isinstance(a, dict) else a for a in answers):
            raise ServerError(f"{self._url}: it does not take {name} {value}: expected SGLang 0.5.23 with DSpark")

    def _asked(self, method: str, path: str, body: object = None) -> Any:
        try:
            response = self._http.request(method, path, json=body)
            if not response.is_success:
                raise ServerError(f"{self._url}{path}: {said(response, key=self._key)}")
            return response.json()
        except httpx.HTTPError as error:
            raise ServerError(f"{self._url} does not answer ({failure_name(error)})") from error
        except ValueError as error:
            raise ServerError(f"{self._url}{path}: expected JSON; is this an SGLang server?") from error


def splits_of(requests: Sequence[int], rows: Sequence[int], served: ServedRounds) -> list[Split]:
    """Shapes that the server can run: ``static`` has all proposals; ``compact`` spreads rows by its own confidence, so
    how they lie is not known, and a shape stands for their number."""
    most = served.num_proposals + 1
    per_request = [most] if served.mode == STATIC else [count for count in rows if count <= most]
    return [(count,) * r for r in requests for count in per_request]


def _payload(info: Mapping[str, Any], url: str) -> Mapping[str, Any]:
    """What the first rank notes. Raises ``ServerError`` naming everything that is not as it must be."""
    states: list[Mapping[str, Mapping[str, Any] | None]] = info.get("internal_states") or []
    payload = states[0].get(RECORD) if states else None
    if not payload:
        raise ServerError(f"{url} notes no rounds: {HOW}")
    problems = []
    if missing := NEEDED - {*payload.get("components", ())}:
        problems.append(f"no {', '.join(sorted(missing))} in what it notes")
    if payload.get("simulate_acc_len") != 1.0:
        problems.append(f"it accepts proposals (simulate_acc_len {payload.get('simulate_acc_len')}, expected 1.0)")
    if payload.get("mode") not in (STATIC, COMPACT):
        problems.append(f"mode {payload.get('mode')}, in which rows that are not granted are computed all the same")
    if problems:
        raise ServerError(f"{url}: its rounds tell no costs: {'; '.join(problems)}; {HOW}")
    return payload
