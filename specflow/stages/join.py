"""``join``: the features of all slices as one store, in the order of the pooled documents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.config.pool import JoinParams
from specflow.stages.contract import Arity, Artifact, Context, Estimate, Inputs, Metrics, Problem, StageError

if TYPE_CHECKING:
    from specflow.data.documents import TokenDocument
    from specflow.features.joining import Part

NAME = "join"
KIND = "features"
INPUTS: Mapping[str, Arity] = {"tokens": Arity.ONE, "features": Arity.MANY}


def check(params: JoinParams) -> Iterable[Problem]:
    return ()


def check_upstream(sections: Mapping[str, Any]) -> Iterable[Problem]:
    """Told before anything is captured."""
    capture = sections.get("capture")
    if capture is not None and capture.store_url is not None:
        yield Problem(
            where="capture.store_url",
            found=capture.store_url,
            expected="no URL: slices are joined on disk, where they share their files",
        )


def files(params: JoinParams) -> Iterable[Path]:
    return ()


def estimate(params: JoinParams) -> Estimate:
    return Estimate(bytes=1_000_000, note="links to the slices' files, which are read once for their checksums")


def run(inputs: Inputs, params: JoinParams, context: Context) -> Metrics:
    """Payload: that of ``capture``; files of shards are links to those of the slices.

    Raises ``StageError`` where a slice's features are missing or of another contract.
    """
    from specflow.data.documents import read_documents
    from specflow.features.joining import CannotJoin, join_features
    from specflow.features.reader import FeatureReader

    pooled = inputs.one("tokens")
    documents = read_documents(pooled.path)
    try:
        parts = _parts(pooled, inputs.all("features"), documents)
        shards = join_features(parts, context.output, checksums=params.checksums)
    except CannotJoin as error:
        raise StageError(f"join: {error}") from error
    reader = FeatureReader(context.output, checksums=False)
    context.log(f"{len(reader)} documents in {shards} shards of {len(inputs.all('features'))} slices")
    return {
        "documents": len(reader),
        "tokens": sum(reader.length(i) for i in range(len(reader))),
        "shards": shards,
        "slices": len(inputs.all("features")),
        "bytes": reader.stored_bytes,
        "contract_hash": reader.contract.hash,
    }


def _parts(pooled: Artifact, features: Iterable[Artifact], documents: list[TokenDocument]) -> list[Part]:
    """Features of each slice in the order of the pool, with the place of its documents there."""
    from specflow.features.joining import Part
    from specflow.stages.pool import SLICES_FILE

    by_tokens = {artifact.inputs.get("tokens", ""): artifact for artifact in features}
    parts: list[Part] = []
    start = 0
    for entry in json.loads(pooled.file(SLICES_FILE).read_text(encoding="utf-8")):
        artifact = by_tokens.pop(entry["tokens"], None)
        if artifact is None:
            raise StageError(f"join: slice {entry['item'] or 'base'} (tokens/{entry['tokens'][:12]}) has no features")
        parts.append(Part(f"{artifact.kind}/{artifact.key[:12]}", artifact.path, _described(documents, start)))
        start += entry["documents"]
    if by_tokens:
        raise StageError(f"join: features of tokens {', '.join(k[:12] for k in by_tokens)} are of no pooled slice")
    return parts


def _described(documents: list[TokenDocument], start: int) -> Any:
    def describe(index: int) -> dict[str, Any]:
        document = documents[start + index]
        return {"index": start + index, "split": document.split, "id": document.id}

    return describe
