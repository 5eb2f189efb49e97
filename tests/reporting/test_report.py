"""The page and the pictures: complete, self-contained, and the same for the same inputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specflow.reporting import text
from specflow.reporting.collect import ReportData, gather
from specflow.reporting.curves import Band, read_curves, smooth
from specflow.reporting.html import render_html
from specflow.reporting.plots import write_plots
from specflow.reporting.summary import summary, summary_table
from tests.reporting.helpers import report_data


@pytest.fixture(scope="module")
def data() -> ReportData:
    return report_data()


@pytest.fixture(scope="module")
def two() -> ReportData:
    return report_data(("first", "second"))


@pytest.fixture(scope="module")
def page(data: ReportData) -> str:
    return render_html(data)


def test_headline_figures_are_those_of_the_result(data: ReportData) -> None:
    total = data.drafters[0].benchmark["total"]  # type: ignore[index]
    found = summary(data)
    assert found["speedup"] == total["speedup"]["ratio"]
    assert found["baseline_tokens_per_second"] == pytest.approx(1 / 0.045)
    assert found["tau"] == pytest.approx((6 * 2 * (3 + 4 + 5) + 6 * 3 * (1 + 2)) / 72)
    assert found["kinds"]["service"]["tau"] == pytest.approx(4.0)
    assert found["verified"] is True


def test_page_shows_the_figures(page: str, data: ReportData) -> None:
    found = summary(data)
    for shown in (
        text.times(found["speedup"]),
        text.number(found["baseline_tokens_per_second"], 1),
        text.number(found["drafter_tokens_per_second"], 1),
        text.interval(found["speedup_low"], found["speedup_high"]),
        "1,234",
        '<td class="">too_long</td><td class="n">7</td><td class="n">3.5 %</td>',
        "a.jsonl:3 &lt;b&gt;4096&lt;/b&gt; tokens",
        "14.2",
        "1.50×",
        "Greedy output is equal",
        "What this does not show",
        "a processor &lt;of&gt; 2 cores",
        "A report &amp; more",
        "abababababab",
    ):
        assert shown in page, shown


def test_page_shows_what_was_captured_and_how_it_was_checked(page: str) -> None:
    from specflow.reporting.html import _features

    rows = dict(_features(report_data().features))
    assert rows == {
        "documents": "1,234",
        "tokens": "5,678",
        "bytes": "2,208,742, 389 a token",
        "set aside, not finite": "3",
        "documents computed again": "8 while capturing, 2 read back from the store",
        "largest difference of a row": "0.0021",
        "smallest to a neighbouring layer": "0.25",
        "head chooses the answer's token": "99.75 % of 400 rows, and 1 near ties",
        "head chooses as on the document alone": "no rows to judge",
        "precision": "fp32",
    }
    for value in rows.values():
        assert value in page
    assert _features({}) == []


def test_page_holds_every_figure_as_valid_json(page: str) -> None:
    ids = re.findall(r"data-figure", page.split("<script>")[0])
    specs = re.findall(r'<script type="application/json" id="([^"]+)-spec">(.*?)</script>', page)
    names = [name for name, _ in specs]
    assert len(ids) == len(specs) == 12
    assert names == [
        "dflash-rates", "dflash-tau", "dflash-cumulative", "dflash-conditional", "dflash-round", "dflash-per-token",
        "dflash-loss", "dflash-heldout", "dflash-rate", "dflash-gradient", "data-length", "data-share",
    ]  # fmt: skip
    figures = {name: json.loads(spec) for name, spec in specs}
    cumulative = {t["name"]: t["y"] for t in figures["dflash-cumulative"]["data"]}
    assert cumulative["service"] == pytest.approx([1, 1, 2 / 3, 1 / 3, 0])
    assert [t["name"] for t in figures["dflash-round"]["data"]] == ["draft", "verify", "state", "other"]
    assert figures["dflash-round"]["data"][1]["x"] == pytest.approx([50.0, 50.0, 50.0])
    shades = {t["legendgroup"]: (t["x"], t["y"]) for t in figures["dflash-heldout"]["data"] if "fill" in t}
    assert shades == {
        "broad": ([50, 100, 100, 50], [1.1, 1.25, 1.55, 1.3]), "all": ([50, 100, 100, 50], [1.375, 2.0, 2.5, 1.75]),
    }  # fmt: skip
    assert figures["dflash-gradient"]["layout"]["yaxis"]["type"] == "log"
    assert figures["dflash-rate"]["data"][0]["y"][0] == 6e-4


def test_page_loads_nothing_from_anywhere(page: str) -> None:
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert "http" not in own
    assert not re.search(r"<(link|img|iframe|script[^>]+src)", own)
    assert not re.search(r"@import|url\(", own)
    assert page.count("<script>") == 2


def test_page_is_the_same_for_the_same_data(page: str, data: ReportData) -> None:
    assert render_html(data) == page


def test_pictures_exist_and_are_byte_equal(tmp_path: Path, two: ReportData) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = write_plots(two, tmp_path / "a")
    write_plots(two, tmp_path / "b")
    # `second` accepts more, so it is the best drafter and takes the plain names.
    plain = ["acceptance.png", "loss.png", "optimiser.png", "overview.png", "round.png"]
    assert [p.name for p in first] == sorted([*plain, *(n.replace(".png", "-first.png") for n in plain)])
    assert all((tmp_path / "a" / p.name).read_bytes() == (tmp_path / "b" / p.name).read_bytes() for p in first)
    assert (tmp_path / "a" / "acceptance.png").read_bytes() != (tmp_path / "a" / "acceptance-first.png").read_bytes()


def test_several_drafters_are_compared_and_the_best_leads(two: ReportData) -> None:
    page = render_html(two)
    assert "Drafters compared" in page
    assert summary(two)["best_drafter"] == "second"
    assert "with drafter second" in page


def test_summary_table_has_one_line_per_kind(data: ReportData) -> None:
    lines = summary_table(data.drafters).splitlines()
    assert len(lines) == 5
    assert re.sub(" +", " ", lines[0]) == "drafter prompts baseline tok/s drafter tok/s tau speed-up 95 % interval"
    assert [line.split()[1] for line in lines[2:]] == ["broad", "service", "all"]
    assert lines[3].split()[2] == "22.2"
    assert lines[3].split()[4:6] == ["4.00", "2.70×"]


def test_curves_read_training_and_evaluation_lines(tmp_path: Path) -> None:
    lines = [
        {"step": 1, "loss": 3.0, "lr": 0.1, "grad_norm": 4.0},
        {"step": 2, "loss": 2.0, "lr": 0.2, "grad_norm": 5.0},
        {"step": 0, "tau": 1.0, "tau_low": None, "tau_high": None},
        {"step": 2, "tau": 1.5, "tau_low": 1.25, "tau_high": 2.0,
         "by_kind": {"x": {"tau": 1.75, "tau_low": 1.5, "tau_high": 1.875}, "y": 1.25}},
    ]  # fmt: skip
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    found = read_curves(path)
    assert (found.loss.steps, found.loss.values) == ([1, 2], [3.0, 2.0])
    assert found.learning_rate.values == [0.1, 0.2]
    assert found.gradient_norm.values == [4.0, 5.0]
    assert (found.tau.steps, found.tau.values) == ([0, 2], [1.0, 1.5])
    assert found.tau_band == Band(steps=[2], low=[1.25], high=[2.0])
    assert {k: list(s.values) for k, s in found.tau_by_kind.items()} == {"x": [1.75], "y": [1.25]}
    assert found.tau_band_by_kind == {
        "x": Band(steps=[2], low=[1.5], high=[1.875]),
        "y": Band(steps=[], low=[], high=[]),
    }
    path.write_text('{"step": 1}\nnot json\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl:2"):
        read_curves(path)


def test_training_note_tells_the_start_and_the_kept_step(data: ReportData) -> None:
    from dataclasses import replace

    from specflow.reporting.html import training_note

    kept = "Kept: step 100, tau 2.25 (95 % interval 2.00 – 2.50)."
    assert training_note(data.drafters[0]) == f"Steps: 90. {kept}"
    warm = {"source": "ab" * 32, "taken": 9, "new": {"markov.weight": [3]}, "left": {}}
    started = replace(data.drafters[0], manifest={"lineage": {"start": "random weights", "init_from": warm}})
    assert training_note(started) == (
        f"Steps: 90. Started from drafter abababababab: 9 tensors taken; new markov.weight. {kept}"
    )
    random = replace(data.drafters[0], manifest={"lineage": {"start": "random weights"}})
    assert "Started from random weights." in training_note(random)


def test_smooth_is_a_centred_mean_with_short_ends() -> None:
    assert smooth([0.0, 3.0, 6.0, 9.0], width=3) == [1.5, 3.0, 6.0, 7.5]


def test_gather_joins_by_drafter_key_and_counts_the_data(tmp_path: Path) -> None:
    def made(kind: str, key: str, *, item: str | None = None, **inputs: str) -> Any:
        path = tmp_path / key
        path.mkdir()
        return SimpleNamespace(kind=kind, key=key, path=path, inputs=inputs, parameters={}, metrics={"n": 1}, item=item)

    drafters = [made("drafter", "d2", item="b"), made("drafter", "d1", item="a")]
    benchmarks = [made("benchmark", "r2", drafter="d2"), made("benchmark", "r1", drafter="d1")]
    for name in ("r1", "r2"):
        (tmp_path / name / "result.json").write_text(json.dumps({"made_by": name}))
    tokens = made("tokens", "t")
    (tokens.path / "quarantine.jsonl").write_text(
        '{"reason": "long", "row": 1}\n{"detail": "a\u2028b", "reason": "empty", "row": 2, "source": "f"}\n'
        '{"reason": "empty"}\n',
        encoding="utf-8",
    )
    tokens.metrics["rows"] = 40
    documents = [
        SimpleNamespace(split="train", kind="x", ids=[1] * 10, supervised=[True] * 5 + [False] * 5),
        SimpleNamespace(split="train", kind="x", ids=[1] * 4, supervised=[True] * 4),
        SimpleNamespace(split="heldout", kind="x", ids=[1] * 32, supervised=[False] * 32),
    ]
    data = gather(
        title="t", drafters=drafters, verifications=[], benchmarks=benchmarks, data=[tokens], documents=documents
    )
    assert [(d.name, d.benchmark) for d in data.drafters] == [("a", {"made_by": "r1"}), ("b", {"made_by": "r2"})]
    assert data.corpus.set_aside == [
        {"made": "tokens", "reason": "empty", "rows": 2, "of": 40, "example": "f:2 a\u2028b"},
        {"made": "tokens", "reason": "long", "rows": 1, "of": 40, "example": "1"},
    ]
    assert data.corpus.length_counts == {"train": [2, 0, 0], "heldout": [0, 0, 1]}
    assert data.corpus.share_counts == [1, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert data.corpus.rows[0] == {
        "split": "train", "kind": "x", "documents": 2, "tokens": 14, "supervised": 9, "longest": 10,
    }  # fmt: skip


def test_numbers_as_people_read_them() -> None:
    assert text.number(1234.567) == "1,234.57"
    assert text.number(float("nan")) == text.number(None) == "–"
    assert text.percent(0.256) == "26 %"
    assert text.compact({"a": {"b": 0.5}, "h": "ab" * 32, "l": [1, 2]}) == "a (b 0.5), h abababababab, l [1, 2]"


def test_differing_outputs_are_told_with_their_gap() -> None:
    from specflow.reporting.html import _differences

    assert _differences({}) == ""
    equal = {"prompts": 3, "differing": 0, "near_ties": 0, "differences": []}
    assert _differences({"equality": equal}) == " The outputs of all 3 prompts are equal."
    rows = [{"gap": 0.25}, {"gap": None}]
    found = _differences({"equality": {"prompts": 3, "differing": 2, "near_ties": 1, "differences": rows}})
    assert found == (
        " The outputs of 2 of 3 prompts differ, 1 of them at a near tie; largest fp32 logit gap 0.25."
    )  # fmt: skip


def test_the_certificate_is_shown_with_its_p_values(data: ReportData) -> None:
    from dataclasses import replace

    row = {
        "setting": "T 1, top-k", "samples": 1000, "cells": 17, "g": 14.2, "p_value": 0.583,
        "total_variation": 0.021, "detectable": 0.125, "power": 0.99,
    }  # fmt: skip
    check = {
        "name": "lossless", "what": "Sampled answers", "passed": True, "limit": "p-values of at least 0.0001",
        "numbers": {
            "smallest_p_value": 0.583, "settings": 1, "against": "the enumerated distribution", "alphabet": 24,
            "tokens_of_an_answer": 3, "batch_size": 8, "accepted_per_round": 1.25, "tree": [3, 4, 16], "tests": [row],
        },
    }  # fmt: skip
    real = {
        **check, "name": "continuations",
        "numbers": {
            **check["numbers"], "classes": 8, "continuations": 1234, "prompts": 4, "positions": 20000,
            "tests": [{**row, "setting": "all settings, neighbours", "detectable": 0.0321}],
        },
    }  # fmt: skip
    drafter = replace(data.drafters[0], verification={"passed": True, "checks": [check, real]})
    benchmark = {**(drafter.benchmark or {}), "tree": {"steps": 3, "topk": 4, "num_draft_tokens": 16, "chosen": None}}
    page = render_html(replace(data, drafters=[replace(drafter, benchmark=benchmark)]))
    for shown in ("T 1, top-k", "0.583", "0.125", "trees of 3 steps, topk 4, 16 rows", "1.25 proposals accepted",
                  "Trees of 3 steps, topk 4, 16 rows.", "at most 4", "1,234 continuations of 4 prompts", "0.032",
                  "all settings, neighbours", "20,000 positions"):  # fmt: skip
        assert shown in page
