"""How a server for capture is started; also what a person is told to type."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from specflow.targets.sglang.facts import Wanted
from specflow.targets.sglang.layers import convention_for

PASS_TOKENS = 4096
"""SGLang sets memory aside for one pass, 1.5 MB a token: its own 16384 leave nothing on a device of 24 GB."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def capture_arguments(wanted: Wanted, *, further: Sequence[str] = ()) -> list[str]:
    """Arguments of ``sglang.launch_server`` without host and port.

    The prefix cache returns no rows for what it holds, and of a prefill in pieces only the last one's rows come back:
    both are off. ``--speculative-algorithm`` names the meaning of the layer ids here; nothing speculates.
    """
    return [
        "--model-path", str(wanted.target.resolve()),
        "--dtype", DTYPES[wanted.precision],
        "--enable-return-hidden-states",
        "--enable-return-aux-hidden-states",
        "--speculative-algorithm", convention_for(wanted.architecture),
        "--return-aux-hidden-state-layer-ids", *map(str, wanted.layer_ids),
        "--disable-radix-cache",
        "--chunked-prefill-size", "-1",
        "--max-prefill-tokens", str(max(PASS_TOKENS, wanted.longest)),
        *further,
    ]  # fmt: skip


def shell(arguments: Sequence[str]) -> str:
    """The command for a person."""
    return shlex.join(["python", "-m", "sglang.launch_server", *arguments])
