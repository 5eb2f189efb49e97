"""Requests, kept results, first differences, and the order in which modes alternate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specflow.decoding.records import Generation, Round
from specflow.serving.generate_baseline import alternate
from specflow.serving.pairs import measure_pairs, read_pairs
from specflow.serving.requests import Request, heldout_requests, requests_hash
from specflow.serving.verification.equality import check_equality, first_difference, near_tie_gap, near_tie_limit
from specflow.serving.verification.journal import Journal


def document(name: str, split: str, kind: str, prompt: list[int]) -> Any:
    return SimpleNamespace(id=name, split=split, kind=kind, prompt_ids=prompt)


def test_requests_are_heldout_only_and_limited_per_kind() -> None:
    documents = [
        document("a", "train", "x", [1]),
        document("b", "heldout", "x", [1, 2]),
        document("c", "heldout", "x", [3]),
        document("d", "heldout", "y", [4]),
        document("e", "heldout", "y", []),
    ]
    assert [r.id for r in heldout_requests(documents)] == ["b", "c", "d"]
    limited = heldout_requests(documents, per_kind=1)
    assert limited == [Request(id="b", kind="x", prompt=(1, 2)), Request(id="d", kind="y", prompt=(4,))]
    assert requests_hash(limited) != requests_hash(limited[::-1])
    with pytest.raises(ValueError, match="held-out"):
        heldout_requests(documents[:1])


@pytest.mark.parametrize(
    ("plain", "other", "expected"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([], [5], 0), ([1, 2, 3], [9, 2, 3], 0)],
)
def test_first_difference(plain: list[int], other: list[int], expected: int | None) -> None:
    assert first_difference(plain, other) == expected


class TableTarget:
    """Logits are a function of the last token alone: row ``last`` of a table."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def new_cache(self, batch: int, capacity: int) -> None:
        return None

    def forward(self, ids: torch.Tensor, cache: None) -> Any:
        return SimpleNamespace(last_hidden_BTH=self.table[ids])

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def test_gap_is_the_distance_of_the_worse_token_from_the_best() -> None:
    target = TableTarget(torch.tensor([[0.0, 0.0, 0.0], [5.0, 4.75, 1.0], [0.0, 0.0, 0.0]]))
    assert near_tie_gap(target, [2], [1], tokens=[0, 1]) == pytest.approx((0.25, 5.0))
    assert near_tie_gap(target, [2], [1], tokens=[1, 2]) == pytest.approx((4.0, 5.0))


def test_limit_of_a_near_tie_follows_the_arithmetic() -> None:
    assert near_tie_limit("fp32", None, largest_logit=20.0) == 0.0
    assert near_tie_limit("fp32", 0.5, largest_logit=20.0) == 0.0
    assert near_tie_limit("packed", None, largest_logit=20.0) == pytest.approx(2e-3)
    assert near_tie_limit("bf16", None, largest_logit=20.0) == pytest.approx(20 / 64)
    assert near_tie_limit("packed", 0.5, largest_logit=20.0) == 0.5


@pytest.mark.parametrize(
    ("precision", "gap", "passed"),
    [
        ("packed", 4e-4, True),
        ("packed", 6e-4, False),
        ("bf16", 0.07, True),
        ("bf16", 0.09, False),
        ("fp32", 0.0, False),
    ],
)
def test_without_a_limit_the_arithmetic_decides(precision: str, gap: float, passed: bool) -> None:
    target = TableTarget(torch.tensor([[0.0, 0.0, 0.0], [5.0, 5.0 - gap, 1.0], [0.0, 0.0, 0.0]]))
    requests = [Request(id="p", kind="x", prompt=(2,))]
    check = check_equality(
        requests, plain=[[1, 0]], speculative=[[1, 1]], exact=target, near_tie=None, precision=precision
    )
    assert check.passed is passed
    assert check.numbers["near_ties"] == int(passed)


@pytest.mark.parametrize(
    ("near_tie", "precision", "passed"), [(0.5, "bf16", True), (0.1, "bf16", False), (0.5, "fp32", False)]
)
def test_a_difference_must_be_a_near_tie_and_none_is_allowed_in_fp32(
    near_tie: float, precision: str, passed: bool
) -> None:
    target = TableTarget(torch.tensor([[0.0, 0.0, 0.0], [5.0, 4.75, 1.0], [0.0, 0.0, 0.0]]))
    requests = [Request(id="p", kind="x", prompt=(2,)), Request(id="q", kind="x", prompt=(0,))]
    check = check_equality(
        requests,
        plain=[[1, 0, 2], [1]],
        speculative=[[1, 1, 2], [1]],
        exact=target,
        near_tie=near_tie,
        precision=precision,
    )
    assert check.passed is passed
    assert check.numbers["differing_prompts"] == 1
    assert check.numbers["largest_gap"] == pytest.approx(0.25)
    assert check.numbers["differences"][0] | {"gap": None} == {
        "id": "p", "kind": "x", "position": 1, "plain": 0, "speculative": 1, "gap": None, "largest_logit": 5.0,
    }  # fmt: skip
    assert ("prompt p (x), token 1: plain 0, speculative 1" in str(check)) is not passed


def test_an_output_that_ends_early_is_never_a_near_tie() -> None:
    target = TableTarget(torch.zeros(3, 3))
    requests = [Request(id="p", kind="x", prompt=(2,))]
    check = check_equality(requests, plain=[[1, 0]], speculative=[[1]], exact=target, near_tie=1e9, precision="bf16")
    assert not check.passed
    assert check.numbers["differences"][0]["gap"] is None


def test_journal_continues_and_drops_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    first = Journal(path)
    first.add(2, [7, 8])
    first.add(0, [])
    with path.open("a") as file:
        file.write('{"index": 1, "tok')
    again = Journal(path)
    assert (len(again), 2 in again, 1 in again, again[2], again[0]) == (2, True, False, [7, 8], [])
    again.add(1, [9], accepted=[3, 0])
    assert Journal(path)[1] == [9]
    assert (Journal(path).accepted(1), Journal(path).accepted(2)) == ([3, 0], [])


def test_reading_a_sound_journal_does_not_write_it(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path).add(0, [1])
    before = path.stat()
    assert Journal(path)[0] == [1]
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_kill_while_a_torn_line_is_cut_off_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path).add(0, [1, 2])
    with path.open("a") as file:
        file.write('{"index"')

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            Journal(path)
    assert Journal(path)[0] == [1, 2]
    assert path.read_text() == '{"index":0,"tokens":[1,2]}\n'


def generation(prompt: Sequence[int], rounds: int = 0) -> Generation:
    return Generation(
        prompt_length=len(prompt),
        tokens=[1, 2],
        finish="length",
        decode_seconds=1.0,
        rounds=[Round(proposed=3, accepted=1, delivered=2)] * rounds,
    )


def test_pairs_swap_their_order_and_continue_after_a_kill(tmp_path: Path) -> None:
    calls: list[str] = []

    def plain(prompt: Sequence[int]) -> Generation:
        calls.append(f"p{prompt[0]}")
        return generation(prompt)

    def fast(prompt: Sequence[int]) -> Generation:
        calls.append(f"s{prompt[0]}")
        if prompt[0] == 2 and calls.count("s2") == 1:
            raise KeyboardInterrupt
        return generation(prompt, rounds=2)

    requests = [Request(id=str(i), kind="x", prompt=(i,)) for i in range(4)]
    kept = tmp_path / "pairs.jsonl"
    with pytest.raises(KeyboardInterrupt):
        measure_pairs(requests, plain=plain, speculative=fast, repeats=2, kept=kept)
    assert calls == ["p0", "s0", "s0", "p0", "s1", "p1", "p1", "s1", "p2", "s2"]
    with kept.open("a") as file:
        file.write('{"id": "2", "kind"')
    calls.clear()
    calls.append("s2")
    pairs = measure_pairs(requests, plain=plain, speculative=fast, repeats=2, kept=kept)
    assert calls[1:] == ["p2", "s2", "s2", "p2", "s3", "p3", "p3", "s3"]
    assert [p.id for p in pairs] == ["0", "1", "2", "3"]
    assert all(len(p.plain) == len(p.speculative) == 2 for p in pairs)
    assert list(read_pairs(kept).values()) == pairs


def test_modes_take_turns_at_beginning() -> None:
    order: list[str] = []

    def mode(name: str) -> Any:
        def decode(prompt: Sequence[int]) -> Generation:
            order.append(name)
            return generation(prompt)

        return decode

    found = alternate({n: mode(n) for n in "abc"}, [[1], [2], [3]])
    assert "".join(order) == "abcbcacab"
    assert {n: len(g) for n, g in found.items()} == {"a": 3, "b": 3, "c": 3}
