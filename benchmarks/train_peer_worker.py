"""One side of ``train_peer.py`` in a process of its own: answers each line of input with a line of JSON.

``steps N`` runs N steps; ``memory`` tells the peak and what was held after the imports, in bytes.
"""

from __future__ import annotations

import json
import sys
import time


def main(side: str, case_json: str, threads: int) -> None:
    import torch
    from train_case import Case, peak, resident

    torch.set_num_threads(threads)
    if side == "peer":
        from train_peer_step import Step as PeerStep

        imported = resident()
        step = PeerStep(Case(**json.loads(case_json)))
    else:
        from train_step import Step

        imported = resident()
        step = Step(Case(**json.loads(case_json)), sampled=True)
    for line in sys.stdin:
        if line.startswith("steps"):
            begin = time.perf_counter()
            losses = [step.run() for _ in range(int(line.split()[1]))]
            answer = {"seconds": time.perf_counter() - begin, "losses": losses}
        else:
            answer = {"peak": peak(), "imported": imported}
        print("=" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
