"""Figures of a store against the same computed with numpy on all rows at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from specflow.features import statistics
from specflow.features.contract import FeatureContract
from specflow.features.statistics import figures_of
from specflow.features.store import Document, FeatureReader, FeatureWriter

CONTRACT = FeatureContract(
    weights_sha256="w",
    config_sha256="c",
    tokenizer_sha256="t",
    template_sha256="m",
    layer_ids=(0, 3),
    hidden_size=16,
    precision="fp32",
)


def make(index: int, tokens: int) -> Document:
    generator = torch.Generator().manual_seed(index)
    features = torch.randn(tokens, 2, 16, generator=generator)
    features[:, 1, 7] *= 40  # an outlier channel of layer 3
    features[0, 0, :4] = 0
    last = 3 * torch.randn(tokens, 16, generator=generator)
    if index == 2:
        last[5, 9] = -1000.0
    return Document(
        index=index,
        split="heldout" if index == 3 else "train",
        kind="b" if index == 1 else "a",
        id=f"row-{index}",
        greedy=index != 1,
        token_ids_T=torch.arange(tokens),
        supervised_T=torch.arange(tokens) >= tokens // 2,
        features_TKH=features.bfloat16(),
        last_hidden_TH=last.bfloat16(),
    )


@pytest.fixture
def documents() -> list[Document]:
    return [make(i, tokens) for i, tokens in enumerate((3, 10, 23, 8))]


@pytest.fixture
def reader(tmp_path: Path, documents: list[Document]) -> FeatureReader:
    writer = FeatureWriter(tmp_path, CONTRACT)
    writer.write(0, documents[:3])
    writer.write(1, documents[3:])
    writer.finish(2)
    return FeatureReader(tmp_path)


@pytest.mark.parametrize("block", [1, 4, 512])
def test_figures_equal_those_of_all_rows_at_once(
    documents: list[Document], reader: FeatureReader, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(statistics, "BLOCK_ROWS", block)
    found = figures_of(reader)
    assert (found.documents, found.tokens, found.rows) == (4, 44, 44)
    assert found.supervised == sum(int(d.supervised_T.sum()) for d in documents)
    for v, name in enumerate(("layer 0", "layer 3", "last_hidden")):
        rows = [d.features_TKH[:, v] if v < 2 else d.last_hidden_TH for d in documents]
        every = np.concatenate([r.float().numpy() for r in rows]).astype(np.float64)
        figures = found.vectors[v]
        assert figures.name == name
        assert figures.mean_norm == pytest.approx(np.linalg.norm(every, axis=1).mean())
        assert figures.rms == pytest.approx(np.sqrt((every**2).mean()))
        assert figures.largest == np.abs(every).max()
        assert figures.zero_share == pytest.approx((every == 0).mean())
        assert figures.not_finite == 0
    assert found.vectors[0].zero_share > 0
    ((channel, ratio),) = found.vectors[1].outliers
    assert (channel, found.vectors[1].outlier_channels) == (7, 1)
    assert 20 < ratio < 80
    assert found.vectors[0].outliers == ()
    assert found.vectors[2].largest_at == "document row-2, row 5, channel 9"


def test_coverage_by_split_and_kind(reader: FeatureReader) -> None:
    assert figures_of(reader).coverage == (
        {"split": "train", "kind": "a", "documents": 2, "tokens": 26, "supervised": 14, "greedy": 2},
        {"split": "train", "kind": "b", "documents": 1, "tokens": 10, "supervised": 5, "greedy": 0},
        {"split": "heldout", "kind": "a", "documents": 1, "tokens": 8, "supervised": 4, "greedy": 1},
    )


def test_values_that_are_not_finite_are_counted_and_left_out(tmp_path: Path) -> None:
    document = make(0, 4)
    document.features_TKH[1, 0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    writer = FeatureWriter(tmp_path, CONTRACT)
    writer.write(0, [document])
    writer.finish(1)
    figures = figures_of(FeatureReader(tmp_path)).vectors
    assert [v.not_finite for v in figures] == [3, 0, 0]
    assert np.isfinite([v.rms for v in figures]).all()


def test_an_empty_store(tmp_path: Path) -> None:
    writer = FeatureWriter(tmp_path, CONTRACT)
    writer.write(0, [])
    writer.finish(1)
    found = figures_of(FeatureReader(tmp_path))
    assert (found.documents, found.supervised_share, found.coverage) == (0, 0.0, ())
