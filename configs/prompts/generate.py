"""Write the prompt files of this directory, or check that they are what the sources give.

    python configs/prompts/generate.py            write the four files
    python configs/prompts/generate.py --check    compare only; exit status 1 when one differs

Same sources, same bytes: every draw comes from a ``random.Random`` seeded with the name of its file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, get_args

import prompt_broad
import prompt_service
from prompt_fillers import Split

HERE = Path(__file__).parent


def render(rows: list[dict[str, Any]]) -> bytes:
    """JSON lines, UTF-8, one row a line, keys in their given order."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def files() -> dict[str, bytes]:
    """Content of every generated file by its name."""
    made: dict[str, bytes] = {}
    split: Split
    for split in get_args(Split):
        made[f"service-{split}.jsonl"] = render(prompt_service.rows(split))
        made[f"broad-{split}.jsonl"] = render(prompt_broad.rows(split))
    return made


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the files on disk, write nothing")
    check: bool = parser.parse_args(arguments).check
    stale = []
    for name, content in files().items():
        path = HERE / name
        if check and (not path.exists() or path.read_bytes() != content):
            stale.append(name)
        elif not check:
            path.write_bytes(content)
    if stale:
        print(f"differ from their sources: {', '.join(stale)}; run python {Path(__file__).name}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
