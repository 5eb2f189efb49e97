"""One side of ``eagle3_training.py`` in a process of its own: answers each line of input with a line of JSON.

``step`` runs one step and tells its seconds and loss; ``new step`` does so with hidden states of the target that were
not seen before; ``memory`` tells the peak and what was held before, in bytes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
from eagle3_case import Case, Made, fill, make
from eagle3_plain import Plain
from train_case import peak, resident

from specflow.drafters.eagle3.distances import Distance
from specflow.drafters.eagle3.learner import Eagle3Learner
from specflow.drafters.eagle3.network import Eagle3Network
from specflow.drafters.training import Progress, Source
from specflow.training.frozen import FrozenEnds
from specflow.training.objective import Objective
from specflow.training.ranks import Ranks
from specflow.training.sharding import Wrapped
from specflow.training.step import accumulate_gradients


def ours(network: Eagle3Network, case: Case, made: Made) -> Callable[[], float]:
    supervised = torch.arange(case.length) >= case.prompt
    sources = [
        Source(
            token_ids_T=ids,
            supervised_T=supervised,
            features_TKH=features,
            last_hidden_TH=last,
            anchors=torch.empty(0, dtype=torch.int64),
        )
        for ids, features, last in zip(made.ids_DT, made.features_DTKH, made.last_DTH, strict=True)
    ]
    ends = FrozenEnds(made.table_VH, made.table_VH, softmax_tokens=torch.arange(case.vocabulary))
    learner = Eagle3Learner(network, ends, depths=case.depths, decay=0.8, distance=Distance())
    wrapped = Wrapped(Objective(learner), ranks=Ranks())

    def run() -> float:
        return accumulate_gradients(
            wrapped, learner, sources, progress=Progress(0, 1), ranks=Ranks(), documents_per_pass=1
        ).loss

    return run


def main(side: str, case_json: str, threads: int) -> None:
    torch.set_num_threads(threads)
    case = Case(**json.loads(case_json))
    made = make(case)
    network = Eagle3Network(case.geometry, draft_ids=made.draft_ids_D)
    fill(network)
    loss = ours(network, case, made) if side == "ours" else Plain(network, case, made).run
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    begun = resident()
    for line in sys.stdin:
        if line.startswith("new"):
            made.last_DTH.mul_(1.0 + 2.0**-7)  # what both sides read
        if "step" in line:
            begin = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            found = loss()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()
            answer = {"seconds": time.perf_counter() - begin, "loss": found}
        else:
            answer = {"peak": peak(), "begun": begun}
        print("=" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
