"""``kernels``: what the commands say on a machine without a GPU."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.cli.support import specflow


def test_explain_names_the_implementation_the_reason_and_the_cost() -> None:
    rows = json.loads(specflow("kernels", "explain", "verify_chain", "commit_path", "--json").stdout)
    assert {row["operator"] for row in rows} == {"verify_chain", "commit_path"}
    if not torch.cuda.is_available():
        assert {(row["runs"], row["reason"]) for row in rows} == {
            ("reference", "tensors are on cpu; the kernel needs a CUDA device")
        }
    assert all(row["bytes"] > 0 for row in rows)
    public = {row["operator"]: row["public"] for row in rows}
    assert public["commit_path"] == {}
    if find_spec("flashinfer") is None:
        assert public["verify_chain"] == {"FlashInfer": "not installed: pip install flashinfer-python"}


def test_explain_tells_of_public_kernels() -> None:
    told = specflow("kernels", "explain", "anchored_block_attention").stdout
    assert "bench measures against FlexAttention: torch" in told


def test_unknown_operator_is_told_with_the_known_ones() -> None:
    done = specflow("kernels", "explain", "nonsense")
    assert done.exit_code == 2
    assert "no operator has this name" in done.output
    assert "anchored_block_attention" in done.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_bench_without_a_gpu_says_so_and_leaves_no_figures(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    done = specflow("kernels", "bench", "--output", str(output))
    assert done.exit_code == 1
    assert "nothing was measured" in done.output
    assert not output.exists()
