from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specflow.features.contract import FeatureContract

HASHES = {"weights_sha256": "w", "config_sha256": "c", "tokenizer_sha256": "t", "template_sha256": "m"}
OURS = FeatureContract.for_target(HASHES, layer_ids=(1, 3), hidden_size=16, precision="fp32")


def test_differences_name_both_sides() -> None:
    theirs = replace(OURS, layer_ids=(2, 4), template_sha256="x")
    assert OURS.differences(theirs) == [("template_sha256", "m", "x"), ("layer_ids", (1, 3), (2, 4))]
    assert OURS.differences(OURS) == []
    assert OURS.hash != theirs.hash


def test_every_field_counts_in_the_hash() -> None:
    for name, value in OURS.to_dict().items():
        changed = [9, 10] if isinstance(value, list) else 99 if isinstance(value, int) else "other"
        assert FeatureContract.from_dict({**OURS.to_dict(), name: changed}).hash != OURS.hash, name


def test_file_round_trip_and_unknown_fields(tmp_path: Path) -> None:
    OURS.write(tmp_path / "contract.json")
    assert FeatureContract.read(tmp_path / "contract.json") == OURS
    values = OURS.to_dict()
    values["dtipe"] = values.pop("dtype")
    with pytest.raises(ValueError, match=r"missing \['dtype'\], unknown \['dtipe'\]"):
        FeatureContract.from_dict(values)


@pytest.mark.parametrize("layer_ids", [(1, 1), (2, 1), (-1, 2)])
def test_layer_ids_are_unique_and_increasing(layer_ids: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected unique ids from 0 up, increasing"):
        replace(OURS, layer_ids=layer_ids)
    with pytest.raises(ValueError, match="expected unique ids"):
        FeatureContract.from_dict({**OURS.to_dict(), "layer_ids": list(layer_ids)})


def test_a_drafter_of_last_hidden_alone_reads_no_layer() -> None:
    assert FeatureContract.from_dict(replace(OURS, layer_ids=()).to_dict()).layer_ids == ()
