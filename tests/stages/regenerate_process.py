"""Run as a module in a process of its own, to be killed: ``regenerate`` with a server.

Arguments: the directory of the target, that of the context, and the section as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

from specflow.config.regenerate import RegenerateParams
from specflow.stages import regenerate
from tests.stages.pipeline_helpers import FakeContext, inputs, tiny_target

if __name__ == "__main__":
    target, work, section = sys.argv[1:]
    regenerate.run(
        inputs(tiny_target(Path(target))), RegenerateParams.model_validate_json(section), FakeContext(Path(work))
    )
