"""Run as a module in a process of its own, to be killed: ``capture`` on artifacts that a test has made.

Arguments: the directory of the artifacts, the directory of the context, and parameters as JSON if others are wanted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from specflow.config.capture import CaptureParams
from specflow.stages import capture
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs, tiny_target

PARAMS = CaptureParams(layer_ids=(0, 2), shard_tokens=400, batch_tokens=128, precision="fp32", probe_rows=1, threads=1)


def run(artifacts: Path, context: FakeContext, params: CaptureParams = PARAMS) -> Any:
    torch.set_num_threads(1)
    return capture.run(inputs(tiny_target(artifacts), artifact("tokens", artifacts / "tokens")), params, context)


if __name__ == "__main__":
    PARAMS_GIVEN = CaptureParams.model_validate_json(sys.argv[3]) if len(sys.argv) > 3 else PARAMS
    run(Path(sys.argv[1]), FakeContext(Path(sys.argv[2])), PARAMS_GIVEN)
