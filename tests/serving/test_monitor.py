"""What a server accepts, from its counters: tau by our convention, windows, restarts, and what is an alarm."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specflow.serving.acceptance_record import AcceptanceRecord, acceptance_record, accepted_spread
from specflow.serving.monitor import LEAST_ROUNDS, Reading, State, drift, read
from specflow.serving.server_metrics import Counters, parse
from specflow.targets.retrying import ServerError
from tests.cli.support import document, specflow
from tests.serving.fake_metrics import FakeMetrics

RECORD = AcceptanceRecord(tau=3.0, rounds=4000, spread=1.5, num_proposals=5, source="here")


@pytest.fixture
def server() -> Iterator[FakeMetrics]:
    with FakeMetrics() as fake:
        yield fake


def test_the_first_token_of_a_request_belongs_to_no_round(server: FakeMetrics) -> None:
    """Three requests of known rounds: 1 + (3 + 2 + 1), 1 + (6 + 1), and one of a single token, without a round."""
    server.finish(tokens=7, rounds=3)
    server.finish(tokens=8, rounds=2, streaming=True)
    server.finish(tokens=1, rounds=0)
    found = read(server.url)
    assert found.counters == Counters(tokens=16, requests=3, rounds=5, prompt_tokens=21)
    assert found.tau == pytest.approx(13 / 5)
    assert (found.gauges["draft_tokens"], found.gauges["running"]) == (6.0, 4.0)  # ranks: of one, and of all
    assert found.per_second("tokens") is None  # since the start, which nobody knows


def test_a_window_is_what_came_since_the_earlier_reading(server: FakeMetrics) -> None:
    server.finish(tokens=1001, rounds=500)
    first = read(server.url)
    server.finish(tokens=41, rounds=10)
    found = read(server.url, since=first)
    assert (first.tau, found.tau, found.rounds, found.restarted) == (2.0, 4.0, 10, False)
    assert found.seconds == pytest.approx(found.at - first.at)
    assert found.per_second("tokens") == pytest.approx(41 / found.seconds)
    assert read(server.url, since=found).tau is None  # nothing ended meanwhile


def test_a_restart_begins_the_window_anew(server: FakeMetrics) -> None:
    server.finish(tokens=1001, rounds=500)
    before = read(server.url)
    server.restart()
    server.finish(tokens=31, rounds=10)
    found = read(server.url, since=before)
    assert found.restarted
    assert (found.tau, found.rounds) == (3.0, 10)


def test_a_server_without_metrics_still_says_its_mean() -> None:
    info = {"internal_states": [{"avg_spec_accept_length": 2.5}, {}], "speculative_num_draft_tokens": 4}
    with FakeMetrics(metrics=False, info=info) as server:
        found = read(server.url)
    assert (found.tau, found.rounds, found.counters) == (2.5, None, None)
    assert drift(found, RECORD).state is State.FALLEN
    silent = FakeMetrics(metrics=False, info={"internal_states": [{}]})
    with silent as server, pytest.raises(ServerError, match="--enable-metrics"):
        read(server.url)
    with pytest.raises(ServerError, match="does not answer"):
        read(server.url)


@pytest.mark.parametrize(("text", "said"), [("up 1\n", "metrics of SGLang"), ("{}{", "Prometheus text")])
def test_other_text_is_refused(text: str, said: str) -> None:
    with pytest.raises(ServerError, match=said):
        parse(text, where="there")


def at(tau: float, rounds: float, **gauges: float) -> Reading:
    window = Counters(tokens=tau * rounds + 10, requests=10, rounds=rounds, prompt_tokens=0)
    return Reading(url="u", at=0.0, counters=window, window=window, gauges=gauges)


@pytest.mark.parametrize(
    ("tau", "rounds", "state"),
    [
        (3.0, 5000, State.AS_MEASURED),
        (2.71, 5000, State.AS_MEASURED),  # within the margin
        (2.6, 5000, State.FALLEN),
        (2.6, LEAST_ROUNDS - 1, State.UNKNOWN),
        (2.69, 210, State.AS_MEASURED),  # below the limit by less than chance does
        (3.9, 5000, State.AS_MEASURED),
        (1.0, 300, State.FALLEN),
    ],
)
def test_what_is_an_alarm(tau: float, rounds: int, state: State) -> None:
    found = drift(at(tau, rounds), RECORD, 0.1)
    assert (found.state, found.alarm) == (state, state is State.FALLEN), found.reason
    assert found.limit == pytest.approx(2.7)


def test_the_reason_names_the_likely_cause() -> None:
    assert "nearly nothing is accepted" in drift(at(1.01, 5000), RECORD).reason
    assert "drafts 7 tokens a round, it was measured with 5" in drift(at(2.0, 5000, draft_tokens=8), RECORD).reason
    assert "the prompts differ" in drift(at(2.0, 5000, draft_tokens=6), RECORD).reason


def test_chance_alone_raises_no_alarm() -> None:
    """300 windows of the record's own rounds, right at the limit's brink: at most a few in a thousand may be taken."""
    draw = random.Random(4)
    accepted = [0, 1, 2, 3, 5]
    spread = accepted_spread([4, 3, 2, 1, 1], 5)
    mean = 1 + sum(accepted) / 5
    record = AcceptanceRecord(tau=mean, rounds=10**6, spread=spread, num_proposals=5, source="")
    alarms = 0
    for _ in range(300):
        tau = sum(1 + draw.choice(accepted) for _ in range(LEAST_ROUNDS)) / LEAST_ROUNDS
        alarms += drift(at(tau, LEAST_ROUNDS), record, 0.0).alarm
    assert alarms <= 3
    assert spread == pytest.approx(math.sqrt(sum(a * a for a in accepted) / 5 - (sum(accepted) / 5) ** 2))


def test_a_reading_survives_a_file() -> None:
    for reading in (at(2.0, 10, running=1.0), Reading(url="u", at=1.0, counters=None, window=None)):
        assert Reading.from_json(json.loads(json.dumps(reading.as_json()))) == reading
    with pytest.raises(ValueError, match="specflow monitor"):
        Reading.from_json({"url": "u"})


def benchmark(root: Path, **changes: Any) -> Path:
    figures = {"tau": 3.0, "rounds": 100, "acceptance": {"accepted": [80, 60, 60]}}
    result = {"total": figures, "kinds": {"code": {**figures, "tau": 4.0}}, "drafter": {"num_proposals": 3}}
    root.mkdir(exist_ok=True)
    (root / "result.json").write_text(json.dumps({**result, **changes}))
    return root


def test_the_record_is_the_benchmark_s(tmp_path: Path) -> None:
    found = acceptance_record(benchmark(tmp_path))
    assert (found.tau, found.rounds, found.num_proposals) == (3.0, 100, 3)
    assert found.spread == pytest.approx(math.sqrt((80 + 3 * 60 + 5 * 60) / 100 - 4.0))
    assert acceptance_record(tmp_path / "result.json", kind="code").tau == 4.0
    with pytest.raises(ValueError, match="kinds of prompts: code"):
        acceptance_record(tmp_path, kind="math")
    with pytest.raises(ValueError, match="accepted counts"):
        acceptance_record(benchmark(tmp_path, total={"tau": 3.0}))


def test_command_and_its_exit_codes(server: FakeMetrics, tmp_path: Path) -> None:
    record = ("--record", str(benchmark(tmp_path / "b")))
    plain = specflow("monitor", f"{server.url}/v1/", "--json")
    assert (plain.exit_code, document(plain)["tau"], document(plain)["drift"]) == (0, None, None)
    assert specflow("monitor", server.url, *record).exit_code == 4
    server.finish(tokens=3001, rounds=1000)
    good = specflow("monitor", server.url, *record)
    assert good.exit_code == 0, good.output
    assert "tau 3.000, 1000 rounds of 1 requests since the server's start, 4 running" in good.stdout
    server.finish(tokens=3001, rounds=3000)
    told = specflow("monitor", server.url, *record, "--json")
    assert told.exit_code == 3
    assert document(told)["drift"]["state"] == "fallen"
    assert document(told)["tau"] == pytest.approx(1.5)
    assert specflow("monitor", server.url, *record, "--margin", "0.6").exit_code == 0
    assert specflow("monitor", server.url, *record, "--kind", "math").exit_code == 2
    assert specflow("monitor", "no-address").exit_code == 2
    key = tmp_path / "key"
    key.write_text("secret\n")
    assert specflow("monitor", server.url, "--api-key-file", key).exit_code == 0
    assert server.key == "Bearer secret"


def test_the_window_of_a_timer_begins_in_its_file(server: FakeMetrics, tmp_path: Path) -> None:
    kept = tmp_path / "last.json"
    server.finish(tokens=101, rounds=100)
    assert document(specflow("monitor", server.url, "--since", kept, "--json"))["tau"] == 1.0
    server.finish(tokens=401, rounds=100)
    assert document(specflow("monitor", server.url, "--since", kept, "--json"))["tau"] == 4.0
    assert document(specflow("monitor", server.url, "--since", kept, "--json"))["tau"] is None
    kept.write_text("{}")
    assert specflow("monitor", server.url, "--since", kept).exit_code == 2
    assert specflow("monitor", server.url, "--since", kept, "--watch").exit_code == 2


def test_watching_survives_a_restart_and_ends_with_an_alarm(server: FakeMetrics, tmp_path: Path) -> None:
    def between(look: int) -> None:
        if look == 2:
            server.restart()
        server.finish(tokens=3001 if look < 3 else 1501, rounds=1000)

    server.on_look = between
    words = ["--watch", "--window", "0.1", "--json", "--record", str(benchmark(tmp_path))]
    done = specflow("monitor", server.url, *words)
    assert done.exit_code == 3
    windows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(w["tau"], w["restarted"], w["drift"]["state"]) for w in windows] == [
        (3.0, False, "as measured"), (3.0, True, "as measured"), (1.5, False, "fallen"),
    ]  # fmt: skip
