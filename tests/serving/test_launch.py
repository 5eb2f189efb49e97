"""Launch flags come from the manifest, with each engine's meaning of a block."""

from __future__ import annotations

from typing import Any

import pytest

from specflow.serving.launch import launch_command, launch_flags, launch_record

TABLE: list[tuple[dict[str, Any], dict[str, str]]] = [
    # DFLASH counts the verify window: anchor and proposals.
    (
        {"method": "dflash", "block_size": 16, "num_proposals": 15},
        {"--speculative-algorithm": "DFLASH", "--speculative-num-draft-tokens": "16"},
    ),
    (
        {"method": "dflash", "block_size": 6, "num_proposals": 5},
        {"--speculative-algorithm": "DFLASH", "--speculative-num-draft-tokens": "6"},
    ),
    # DSPARK counts proposals, however many rows the drafter needs for them.
    (
        {"method": "dspark", "block_size": 7, "num_proposals": 7, "sample_from_anchor": True},
        {"--speculative-algorithm": "DSPARK", "--speculative-dspark-block-size": "7"},
    ),
    (
        {"method": "dspark", "block_size": 8, "num_proposals": 7, "sample_from_anchor": False},
        {"--speculative-algorithm": "DSPARK", "--speculative-dspark-block-size": "7"},
    ),
]


@pytest.mark.parametrize(("manifest", "expected"), TABLE)
def test_flags(manifest: dict[str, Any], expected: dict[str, str]) -> None:
    flags = launch_flags(manifest, target_path="/models/a model", draft_path="/x/draft")
    assert flags == {
        "--model-path": "/models/a model",
        "--speculative-draft-model-path": "/x/draft",
        "--dtype": "bfloat16",
        **expected,
    }
    assert launch_command(flags).startswith("python -m sglang.launch_server --model-path '/models/a model' --spec")


def test_a_manifest_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match=r"block_size - 1 = 5, found 6"):
        launch_flags({"method": "dflash", "block_size": 6, "num_proposals": 6})
    for rows, from_anchor, fits in ((7, False, 6), (8, True, 8)):
        with pytest.raises(ValueError, match=f"num_proposals = {fits} for a block of {rows} rows .*, found 7"):
            launch_flags(
                {"method": "dspark", "block_size": rows, "num_proposals": 7, "sample_from_anchor": from_anchor}
            )


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match="found 'eagle9'"):
        launch_flags({"method": "eagle9", "block_size": 6, "num_proposals": 5})


def test_record_names_no_machine() -> None:
    record = launch_record(TABLE[1][0], engine="sglang-0.5.23", dtype="float32")
    assert record["command"] == (
        "python -m sglang.launch_server --model-path <target> --speculative-algorithm DFLASH "
        "--speculative-draft-model-path draft --speculative-num-draft-tokens 6 --dtype float32"
    )
