"""Sizes known before the first run."""

from __future__ import annotations

from pathlib import Path

from specflow.config.loading import load_config
from specflow.config.overrides import parse_overrides
from specflow.config.root import Config
from specflow.stages.contract import Estimate
from specflow.workflow.estimates import feature_estimate
from tests.config.support import write


def config(directory: Path, *settings: str) -> Config:
    return load_config(write(directory), parse_overrides(settings)).config


def test_size_of_the_features_from_prompts_target_and_layers(tmp_path: Path) -> None:
    asked = config(tmp_path)
    for name, lines in (("train", [60, 300, 0]), ("held", [90])):
        (tmp_path / f"{name}.jsonl").write_text("".join("x" * max(n - 1, 0) + "\n" for n in lines))
    # A third of the bytes, 64 for the template, 8 of answer; hidden 64, two layers and the last in bf16, 5 beside.
    tokens = (20 + 72) + (100 + 72) + (30 + 72)
    assert feature_estimate(asked.capture, asked) == Estimate(
        bytes=tokens * (2 * 64 * 3 + 5),
        note=f"389 bytes per token in bfloat16, at most about {tokens} tokens of 3 documents",
    )
    small = asked.model_copy(update={"capture": asked.capture.model_copy(update={"storage": "fp8"})})
    assert feature_estimate(small.capture, small) == Estimate(
        bytes=tokens * ((64 + 2) * 3 + 5),
        note=f"203 bytes per token in fp8, at most about {tokens} tokens of 3 documents",
    )
    far = asked.model_copy(
        update={"capture": asked.capture.model_copy(update={"store_url": "s3://b/p", "shard_tokens": 60})}
    )
    assert feature_estimate(far.capture, far) == Estimate(
        bytes=2 * 60 * 389,
        note=f"389 bytes per token in bfloat16, at most about {tokens} tokens of 3 documents: "
        f"{tokens * 389 / 1e9:.3g} GB at s3://b/p, whose free room is not known",
    )
    cut = asked.model_copy(update={"tokenize": asked.tokenize.model_copy(update={"max_length": 100})})
    estimate = feature_estimate(cut.capture, cut)
    assert estimate is not None
    assert estimate.bytes == (92 + 100 + 100) * 389


def test_only_the_rows_asked_for_count(tmp_path: Path) -> None:
    asked = config(tmp_path, "regenerate.train.0.limit=1")
    (tmp_path / "train.jsonl").write_text(("x" * 59 + "\n") * 50)
    (tmp_path / "held.jsonl").write_text("x" * 59 + "\n")
    estimate = feature_estimate(asked.capture, asked)
    assert estimate is not None
    assert estimate.bytes == 2 * 92 * 389


def test_unknown_where_the_target_is_not_here(tmp_path: Path) -> None:
    asked = config(tmp_path, "target.source=somebody/model")
    assert feature_estimate(asked.capture, asked) is None


def test_unknown_where_prompts_are_no_lines(tmp_path: Path) -> None:
    for name in ("train.parquet", "train.json"):
        (tmp_path / name).write_text("[]\n")
        asked = config(tmp_path, f"regenerate.train.0.path={name}")
        assert feature_estimate(asked.capture, asked) is None
    asked = config(tmp_path, 'regenerate.train=[{"dataset": "somebody/prompts", "kind": "k"}]')
    assert feature_estimate(asked.capture, asked) is None
