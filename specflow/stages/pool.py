"""``pool``: the documents of all slices as one set, the base first and then the slices in their order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from specflow.config.pool import PoolParams
from specflow.stages.contract import Arity, Artifact, Context, Estimate, Inputs, Metrics, Problem, StageError

NAME = "pool"
KIND = "tokens"
INPUTS: Mapping[str, Arity] = {"tokens": Arity.MANY}
SLICES_FILE = "slices.json"


def check(params: PoolParams) -> Iterable[Problem]:
    return ()


def files(params: PoolParams) -> Iterable[Path]:
    return ()


def estimate(params: PoolParams) -> Estimate:
    return Estimate(note="as large as the documents of all slices")


def run(inputs: Inputs, params: PoolParams, context: Context) -> Metrics:
    """Payload: ``tokens.jsonl``, and ``slices.json``: the artifact of each slice and how many documents it has.

    Raises ``StageError`` if nothing is left to train or to measure on.
    """
    from specflow.data.documents import TOKENS_FILE, read_documents, write_documents
    from specflow.data.pooling import UNUSED, Pool, counts

    artifacts = in_order(inputs.all("tokens"))
    slices = [read_documents(artifact.path) for artifact in artifacts]
    documents = list(Pool(slices, heldout_newest=params.heldout_newest).documents())
    found = counts(documents)
    empty = [split for split in ("train", "heldout") if not found[split]]
    if empty:
        raise StageError(
            f"pool: no {' and no '.join(empty)} document is left of {len(documents)} in {len(slices)} slices; "
            f"{found[UNUSED]} are unused, because they are held out in another slice or older than pool.heldout_newest"
        )
    write_documents(context.output / TOKENS_FILE, documents)
    listed = [{"item": a.item, "tokens": a.key, "documents": len(d)} for a, d in zip(artifacts, slices, strict=True)]
    (context.output / SLICES_FILE).write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    if found[UNUSED]:
        context.log(f"{found[UNUSED]} of {len(documents)} documents are unused: held out in another slice, or too old")
    return {"slices": len(slices), "documents": len(documents), **found}


def in_order(artifacts: Sequence[Artifact]) -> list[Artifact]:
    """The base, which has no item, then slices by name: a key says which inputs there are, not in which order."""
    return sorted(artifacts, key=lambda artifact: (artifact.item or "", artifact.key))
