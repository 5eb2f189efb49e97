"""A made-up run with two kinds of prompts, for pages and pictures."""

from __future__ import annotations

import math
from typing import Any

from specflow.decoding.records import Generation, Round
from specflow.reporting.collect import Corpus, DrafterResult, ReportData
from specflow.reporting.curves import Band, Curves, Series
from specflow.reporting.measure import Pair, by_kind


def pair(name: str, kind: str, accepted: int) -> Pair:
    rounds = [
        Round(
            proposed=5,
            accepted=accepted,
            delivered=accepted + 1,
            draft_seconds=0.01,
            verify_seconds=0.05,
            state_seconds=0.003,
            other_seconds=0.002,
        )
        for _ in range(6)
    ]
    tokens = list(range(1 + 6 * (accepted + 1)))
    fast = Generation(
        prompt_length=9, tokens=tokens, finish="length", prefill_seconds=0.1, decode_seconds=0.4, rounds=rounds
    )
    slow = Generation(
        prompt_length=9, tokens=tokens, finish="length", prefill_seconds=0.1, decode_seconds=0.045 * (len(tokens) - 1)
    )
    return Pair(id=name, kind=kind, plain=[slow], speculative=[fast])


def result(name: str = "dflash", *, bonus: int = 0) -> dict[str, Any]:
    pairs = [pair(f"s{i}", "service", 2 + i % 3 + bonus) for i in range(6)]
    total, kinds = by_kind([*pairs, *(pair(f"b{i}", "broad", i % 2 + bonus) for i in range(6))])
    return {
        "conventions": {"tau": "bonus included"},
        "sampling": {"name": "greedy", "temperature": 0.0},
        "template": {"sha256": "ef" * 32},
        "dataset": {"sha256": "cd" * 32},
        "concurrency": 1,
        "cache_state": "empty",
        "engine": {"name": "embedded", "precision": "fp32", "threads": 1, "device": "cpu"},
        "drafter": {"name": name, "num_proposals": 5, "block_size": 6},
        "target": {},
        "hardware": {"cpu": "a processor <of> 2 cores"},
        "versions": {"torch": "2"},
        "total": total,
        "kinds": kinds,
        "transformers": {
            "prompts": 2,
            "max_new_tokens": 8,
            "rates": {"generate, float32": {"tokens_per_second": 14.25, "plain_over_this": 1.5}},
        },
    }


def report_data(names: tuple[str, ...] = ("dflash",)) -> ReportData:
    steps = list(range(0, 100, 10))
    curves = Curves(
        loss=Series(steps=steps, values=[3 * math.exp(-s / 30) for s in steps]),
        learning_rate=Series(steps=steps, values=[6e-4 * (1 + math.cos(s / 32)) / 2 for s in steps]),
        gradient_norm=Series(steps=steps, values=[8 * math.exp(-s / 20) + 0.4 for s in steps]),
        tau=Series(steps=[50, 100], values=[1.5, 2.25]),
        tau_by_kind={"broad": Series(steps=[50, 100], values=[1.2, 1.4])},
        tau_band=Band(steps=[50, 100], low=[1.375, 2.0], high=[1.75, 2.5]),
        tau_band_by_kind={"broad": Band(steps=[50, 100], low=[1.1, 1.25], high=[1.3, 1.55])},
    )
    verification = {
        "passed": True,
        "checks": [{"what": "Greedy output is equal", "passed": True, "numbers": {"prompts": 12, "differing": 0}}],
    }
    return ReportData(
        title="A report & more",
        drafters=[
            DrafterResult(name=n, curves=curves, benchmark=result(n, bonus=i), verification=verification)
            for i, n in enumerate(names)
        ],
        corpus=Corpus(
            rows=[
                {
                    "split": "train",
                    "kind": "broad",
                    "documents": 1234,
                    "tokens": 5678,
                    "supervised": 2839,
                    "longest": 99,
                }
            ],
            share_counts=[0, 1, 2, 3, 4, 5, 4, 3, 2, 1],
            length_counts={"train": [3, 20, 41, 9], "heldout": [0, 4, 5, 1]},
            set_aside=[
                {
                    "made": "tokens",
                    "reason": "too_long",
                    "rows": 7,
                    "of": 200,
                    "example": "a.jsonl:3 <b>4096</b> tokens",
                }
            ],
        ),
        features={"tokens": 5678},
        lineage=[
            {"kind": "drafter", "item": "dflash", "key": "ab" * 32, "inputs": {"target": "cd" * 32}, "parameters": {}}
        ],
    )
