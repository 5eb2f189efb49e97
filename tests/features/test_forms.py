"""Every form that rows are stored in: what is read back, what lies on disk, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from specflow.config.capture import CaptureParams
from specflow.drafters.dflash.blocks import Source, assemble
from specflow.features.contract import SCALE_LAYOUT, FeatureContract
from specflow.features.document import Document
from specflow.features.quantise import DTYPES, as_stored
from specflow.features.reader import FeatureReader
from specflow.features.rows import usable_rows
from specflow.features.store import FeatureWriter
from tests.features.test_store import CONTRACT, make

FP8 = replace(CONTRACT, dtype="float8_e4m3fn", scale_layout=SCALE_LAYOUT)
INT8 = replace(CONTRACT, dtype="int8", scale_layout=SCALE_LAYOUT)


def stored(root: Path, contract: FeatureContract, documents: list[Document]) -> FeatureReader:
    writer = FeatureWriter(root, contract)
    writer.write(0, documents[:2])
    writer.write(1, documents[2:])
    writer.finish(2)
    return FeatureReader(root)


def expected(document: Document, contract: FeatureContract) -> Document:
    rows = usable_rows(document.supervised_T) if contract.rows == "usable" else len(document.token_ids_T)
    return replace(
        document,
        features_TKH=as_stored(document.features_TKH[:rows], contract.dtype),
        last_hidden_TH=as_stored(document.last_hidden_TH[:rows], contract.dtype),
    )


def same(one: Document, two: Document) -> bool:
    names = ("token_ids_T", "supervised_T", "features_TKH", "last_hidden_TH")
    return all(torch.equal(getattr(one, n), getattr(two, n)) for n in names) and one.id == two.id


@pytest.mark.parametrize("rows", ["all", "usable"])
@pytest.mark.parametrize("contract", [CONTRACT, FP8, INT8], ids=lambda c: c.dtype)
def test_what_is_read_is_what_the_contract_says(tmp_path: Path, contract: FeatureContract, rows: str) -> None:
    contract = replace(contract, rows=rows)
    documents = [make(i, 3 + i) for i in range(5)]
    documents.append(replace(make(5, 4), supervised_T=torch.zeros(4, dtype=torch.bool)))  # no row of it is usable
    reader = stored(tmp_path, contract, documents)
    for i, document in enumerate(documents):
        found = reader.document(i)
        assert same(found, expected(document, contract))
        assert (found.features_TKH.dtype, found.last_hidden_TH.dtype) == (torch.bfloat16, torch.bfloat16)
        assert reader.length(i) == len(document.token_ids_T)
    if rows == "usable":
        assert len(reader.document(5).last_hidden_TH) == 0


def test_plain_zarr_finds_codes_and_scales(tmp_path: Path) -> None:
    documents = [make(i, 4) for i in range(3)]
    stored(tmp_path, INT8, documents)
    group = zarr.open_group(store=tmp_path / "store/shard-00000", mode="r", zarr_format=3)
    codes, scales = group["features"], group["features_scale"]
    assert isinstance(codes, zarr.Array)
    assert isinstance(scales, zarr.Array)
    assert (codes.dtype, codes.attrs["dtype"], scales.attrs["dtype"]) == (np.int8, "int8", "bfloat16")
    steps = (np.asarray(scales[...]).astype(np.uint32) << 16).view(np.float32)
    found = torch.from_numpy(np.asarray(codes[...]) * steps[..., None]).bfloat16()
    wanted = torch.cat([as_stored(d.features_TKH, "int8") for d in documents[:2]])
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("storage", list(DTYPES))
def test_bytes_per_token_are_those_on_disk(tmp_path: Path, storage: str) -> None:
    params = CaptureParams(layer_ids=(0, 2), storage=storage)
    contract = {"bfloat16": CONTRACT, "fp8": FP8, "int8": INT8}[storage]
    stored(tmp_path, contract, [make(i, 50) for i in range(3)])
    names = ("features", "features_scale", "last_hidden", "last_hidden_scale", "token_ids", "supervised")
    chunks = [p for p in tmp_path.rglob("c/**/*") if p.is_file() and p.relative_to(tmp_path).parts[2] in names]
    assert sum(p.stat().st_size for p in chunks) == 150 * params.bytes_per_token(8)


def test_8_bits_halve_the_bytes() -> None:
    sizes = [CaptureParams(layer_ids=(1, 14, 26), storage=s).bytes_per_token(576) for s in ("bfloat16", "fp8", "int8")]
    assert sizes == [4613, 2317, 2317]


@pytest.mark.parametrize("contract", [FP8, INT8], ids=lambda c: c.dtype)
def test_what_is_not_finite_is_never_quantised(tmp_path: Path, contract: FeatureContract) -> None:
    document = make(0, 3)
    document.features_TKH[1, 0, 2] = torch.inf
    with pytest.raises(ValueError, match="found NaN, infinity"):
        FeatureWriter(tmp_path, contract).write(0, [document])
    assert not FeatureWriter(tmp_path, contract).committed(0)


def test_a_block_that_needs_a_row_left_out_is_refused() -> None:
    document = replace(make(0, 9), supervised_T=torch.tensor([False] * 3 + [True] * 4 + [False] * 2))
    kept = usable_rows(document.supervised_T)
    source = Source(
        token_ids_T=document.token_ids_T,
        supervised_T=document.supervised_T,
        features_TKH=document.features_TKH[:kept],
        last_hidden_TH=document.last_hidden_TH[:kept],
        anchors=torch.tensor([3, 5]),
    )
    made = assemble([source], block_size=4)
    whole = assemble([replace(source, features_TKH=document.features_TKH)], block_size=4)
    assert made is not None
    assert whole is not None
    assert torch.equal(made.features_SKH, whole.features_SKH)
    with pytest.raises(ValueError, match="an anchor at 7 reads the 7 rows before it, the document has features of 6"):
        assemble([replace(source, anchors=torch.tensor([7]))], block_size=4)
