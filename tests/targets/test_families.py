"""Every family's logits and features in the engine equal transformers' own eager forward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, T5Config

from specflow.targets.base import TargetError
from specflow.targets.support import check_supported
from specflow.targets.target import Target
from tests.targets.model_zoo import FAMILIES, make_model

LAYER_IDS = (0, 2)


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Within 1e-5 of the tensor's largest value, or of 1 where that is smaller."""
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-5 * scale)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_passes_equal_one_eager_forward(tmp_path: Path, family: str) -> None:
    """23 rows (sliding windows of 8 included) in passes of 9, 1, 5 and 8 rows; head, norm and features."""
    path = make_model(tmp_path, family)
    reference = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()
    ids = torch.randint(0, 290, (1, 23), generator=torch.Generator().manual_seed(1))
    expected = reference(ids, output_hidden_states=True)
    target = Target.load(path, threads=1)
    cache = target.new_cache(1, 23)
    outputs = []
    for part in ids.split([9, 1, 5, 8], dim=1):
        outputs.append(target.forward(part, cache, layer_ids=LAYER_IDS))
        cache.commit(part.shape[1])
    last_hidden = torch.cat([o.last_hidden_BTH for o in outputs], dim=1)
    features = torch.cat([o.features_BTKH for o in outputs if o.features_BTKH is not None], dim=1)
    assert_equal(target.head(last_hidden), expected.logits)
    assert_equal(last_hidden, expected.hidden_states[-1])
    for k, layer in enumerate(LAYER_IDS):
        assert_equal(features[:, :, k], expected.hidden_states[layer + 1])
    assert expected.logits.std() > 0.05  # the comparison is of real values


def test_unsupported_models_are_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="encoder-decoder"):
        check_supported(T5Config(), tmp_path)
    linear = AutoConfig.for_model("qwen3", num_hidden_layers=2)
    linear.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(TargetError, match="linear_attention"):
        check_supported(linear, tmp_path)
    dynamic = AutoConfig.for_model("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    with pytest.raises(TargetError, match="dynamic"):
        check_supported(dynamic, tmp_path)
    with pytest.raises(TargetError, match=r"no config\.json"):
        Target.load(tmp_path, threads=1)
