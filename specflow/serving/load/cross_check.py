"""SGLang's own bench tool on one cell of the matrix, as an outside measure of ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specflow.serving.load.cells import Cell
from specflow.targets.retrying import ServerError

TOOL = "sglang.benchmark.serving"
KEYS = (
    "completed", "duration", "total_input_tokens", "total_output_tokens", "output_throughput", "mean_ttft_ms",
    "mean_tpot_ms", "mean_itl_ms", "p99_itl_ms", "mean_e2e_latency_ms", "concurrency", "accept_length",
)  # fmt: skip
TAIL = 1500


def largest_closed(cells: Sequence[Cell]) -> Cell | None:
    """The first closed loop with the most in flight; none without any."""
    closed = [cell for cell in cells if cell.concurrency is not None]
    return max(closed, key=lambda cell: cell.concurrency or 0, default=None)


def cross_check(
    python: Path, url: str, cell: Cell, *, target: Path, text_of: Callable[[Sequence[int]], str], limit: int,
    folder: Path, timeout: float,
) -> dict[str, Any]:  # fmt: skip
    """What the tool says of the cell's prompts, sent as text. Raises :class:`ServerError` where it fails."""
    prompts, out = folder / "cross-check-prompts.jsonl", folder / "cross-check.jsonl"
    with prompts.open("w", encoding="utf-8") as file:
        for asked in cell.asked:
            turns = [{"content": text_of(asked.ids)}, {"content": "of no use here"}]
            file.write(json.dumps({"conversations": turns}) + "\n")
    out.unlink(missing_ok=True)
    arguments = [
        "--backend", "sglang", "--base-url", url, "--model", str(target), "--tokenizer", str(target),
        "--dataset-name", "custom", "--dataset-path", str(prompts), "--num-prompts", str(len(cell.asked)),
        "--sharegpt-output-len", str(limit), "--max-concurrency", str(cell.concurrency), "--disable-ignore-eos",
        "--temperature", str(cell.sampling.temperature), "--top-p", str(cell.sampling.top_p), "--flush-cache",
        "--warmup-requests", "1", "--disable-tqdm", "--output-file", str(out),
    ]  # fmt: skip
    command = [str(python), "-m", TOOL, *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"{TOOL} did not end within {timeout:g} s", gone=False) from error
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    if done.returncode or not lines:
        raise ServerError(f"{TOOL} ended with exit code {done.returncode}:\n{done.stderr[-TAIL:]}", gone=False)
    said = json.loads(lines[-1])
    return {
        "tool": TOOL,
        "cell": cell.name,
        "arguments": [a for a in arguments if not a.startswith(str(folder))],
        "figures": {key: said[key] for key in KEYS if key in said},
    }
