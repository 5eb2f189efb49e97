"""Making shards: computed, probed, and committed by a thread while the next one is computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import torch

from specflow.data.documents import TokenDocument
from specflow.features.capture import Captured
from specflow.features.document import Document
from specflow.features.engine import CaptureJob, make_engine
from specflow.features.plan import Batch
from specflow.features.probes import Probe, documents_to_probe, probe_document
from specflow.features.store import FeatureWriter
from specflow.targets.device import device_of
from specflow.targets.target import Target

NOTES = "notes.json"
Notes = dict[str, Any]
"""Committed with a shard: digest of its task, what its probes showed, documents that are not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """One shard to be made: the unit of work and of resuming."""

    number: int
    batches: Sequence[Batch]
    documents: Mapping[int, TokenDocument]
    """Those of the batches, by their number in the tokens artifact."""

    def digest(self, contract_hash: str) -> str:
        """Hex SHA-256 over all that the shard's content follows from, besides code and machine."""
        rows = [[b.prefix, [[i, asdict(self.documents[i])] for i in b.documents]] for b in self.batches]
        return hashlib.sha256(json.dumps([contract_hash, rows]).encode()).hexdigest()


def load_target(job: CaptureJob, *, worker: int = 0) -> Target:
    device = device_of(job.device, worker)
    return Target.load(job.target, precision=job.precision, threads=job.threads, device=device)


class ShardMaker:
    """Makes shards in this process. ``advance`` is told the tokens of every batch; no ``target``: it is loaded."""

    def __init__(
        self, job: CaptureJob, *, advance: Callable[[int], None], worker: int = 0, target: Target | None = None
    ) -> None:
        self._job, self._advance = job, advance
        self._target = target or load_target(job, worker=worker)
        self._ids: dict[int, Sequence[int]] = {}
        self._engine = make_engine(job, self._target, self._ids)
        self._writer = FeatureWriter(job.root, job.contract)

    def make(self, tasks: Iterable[ShardTask]) -> Iterator[tuple[int, Notes]]:
        """Number and notes of every shard once it is committed, which is while the one after it is computed."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            writing: Future[tuple[int, Notes]] | None = None
            for task in tasks:
                captured = self._compute(task)
                notes, rows = self._judge(task, captured)
                if writing is not None:
                    yield writing.result()
                writing = pool.submit(self._write, task.number, notes, rows)
            if writing is not None:
                yield writing.result()

    @property
    def retried(self) -> int:
        return self._engine.retried

    def close(self) -> None:
        self._engine.close()

    def _compute(self, task: ShardTask) -> dict[int, Captured]:
        self._ids.clear()
        self._ids.update((i, document.ids) for i, document in task.documents.items())
        captured: dict[int, Captured] = {}
        for batch in task.batches:
            captured.update(zip(batch.documents, self._engine.run(batch), strict=True))
            self._advance(sum(len(self._ids[i]) for i in batch.documents))
        return captured

    def _judge(self, task: ShardTask, captured: Mapping[int, Captured]) -> tuple[Notes, list[Document]]:
        """The shard's notes, and its rows without documents that are not finite."""
        broken = [i for i, c in captured.items() if not c.finite]
        good = {i: c for i, c in captured.items() if i not in broken}
        notes = {
            "plan": task.digest(self._job.contract.hash),
            "probes": [asdict(p) for p in self._probe(task, good)],
            "not_finite": [[i, task.documents[i].id] for i in broken],
        }
        return notes, [_row(i, task.documents[i], c) for i, c in good.items()]

    def _probe(self, task: ShardTask, captured: Mapping[int, Captured]) -> list[Probe]:
        params = self._job.params
        chosen = documents_to_probe(list(captured), per_shard=params.probe_rows, shard=task.number)
        return [probe_document(self._target, params.layer_ids, task.documents[i], captured[i]) for i in chosen]

    def _write(self, number: int, notes: Notes, rows: Sequence[Document]) -> tuple[int, Notes]:
        self._writer.write(number, rows, extra={NOTES: notes})
        return number, notes


def _row(index: int, document: TokenDocument, captured: Captured) -> Document:
    return Document(
        index=index,
        split=document.split,
        kind=document.kind,
        id=document.id,
        greedy=document.greedy,
        token_ids_T=torch.tensor(document.ids),
        supervised_T=torch.tensor(document.supervised),
        features_TKH=captured.features_TKH,
        last_hidden_TH=captured.last_hidden_TH,
    )
