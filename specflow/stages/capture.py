"""``capture``: token documents in, the target's features of them out, in Zarr shards.

Finished shards survive a kill in the scratch directory; a resumed run verifies them and computes
the rest. The shards are a pure function of documents and parameters.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.config.capture import CaptureParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem, StageError
from specflow.stages.feature_server import check_server, feature_server, served_precision

if TYPE_CHECKING:
    from specflow.data.quarantine import Quarantined
    from specflow.data.stored import StoredDocuments
    from specflow.features.capture import Captured, Capturer
    from specflow.features.contract import FeatureContract
    from specflow.features.plan import Batch
    from specflow.features.probes import Probe
    from specflow.features.served import ServedCapturer
    from specflow.features.store import FeatureWriter
    from specflow.targets.target import Target

NAME = "capture"
KIND = "features"
INPUTS = {"target": Arity.ONE, "tokens": Arity.ONE}
NOTES = "notes.json"


def check(params: CaptureParams) -> Iterable[Problem]:
    yield from check_server(params)
    if params.batch_tokens > params.shard_tokens:
        yield Problem(
            where="batch_tokens",
            found=str(params.batch_tokens),
            expected=f"at most shard_tokens = {params.shard_tokens}",
        )


def files(params: CaptureParams) -> Iterable[Path]:
    return ()


def estimate(params: CaptureParams) -> Estimate:
    vectors = len(params.layer_ids) + 1
    return Estimate(
        note=f"{2 * vectors} bytes x hidden size per token ({len(params.layer_ids)} layers and last_hidden in bf16); "
        "tokens and hidden size are known once the target and tokenize have run"
    )


def run(inputs: Inputs, params: CaptureParams, context: Context) -> Metrics:
    from specflow.data.stored import StoredDocuments
    from specflow.features.contract import FeatureContract
    from specflow.stages.machine import resolved
    from specflow.targets.target import Target

    documents = StoredDocuments(inputs.one("tokens").path)
    artifact = inputs.one("target")
    served = params.engine == "sglang"
    precision = served_precision(params, artifact.path, context) if served else params.precision
    precision, threads = resolved(context.scratch, artifact.path, precision=precision, threads=params.threads)
    target = Target.load(artifact.path, precision=precision, threads=threads)
    _require_layers(params.layer_ids, target.num_layers)
    fingerprint = json.loads(artifact.file("fingerprint.json").read_text(encoding="utf-8"))
    contract = FeatureContract.for_target(
        fingerprint, layer_ids=params.layer_ids, hidden_size=target.hidden_size, precision=target.precision
    )
    try:
        return _Capture(target, contract, documents, params, context).run()
    finally:
        documents.close()


def _require_layers(layer_ids: tuple[int, ...], num_layers: int) -> None:
    wrong = [k for k in layer_ids if not 0 <= k < num_layers - 1]
    if wrong:
        raise StageError(
            f"capture.layer_ids: {list(layer_ids)} asks for {wrong}, but the target has {num_layers} layers: "
            f"expected ids from 0 to {num_layers - 2} (the last layer's output is kept as last_hidden)"
        )


class _Capture:
    """One run of the stage: plan, shards, probes, metrics."""

    def __init__(
        self,
        target: Target,
        contract: FeatureContract,
        documents: StoredDocuments,
        params: CaptureParams,
        context: Context,
    ) -> None:
        from specflow.features.plan import plan_shards
        from specflow.features.store import FeatureWriter

        self._target, self._contract, self._documents = target, contract, documents
        self._params, self._context = params, context
        self._ids = documents.ids
        self._plan: list[list[Batch]] = plan_shards(
            self._ids,
            batch_tokens=params.batch_tokens,
            shard_tokens=params.shard_tokens,
            share_prefixes=params.share_prefixes,
        )
        self._capturer: Capturer | ServedCapturer | None = None
        self._writer: FeatureWriter = FeatureWriter(context.scratch, contract)
        self._notes: dict[int, dict[str, Any]] = {}
        self._seconds = 0.0
        self._computed = 0
        self._server: dict[str, Any] = {}

    def run(self) -> Metrics:
        from specflow.features.probes import Probe, ProbeFailure, judge_alignment

        self._keep_finished()
        self._require_room()
        try:
            self._compute_missing()
            notes = [self._notes[n] for n in range(len(self._plan))]
            probes = [Probe(**p) for note in notes for p in note["probes"]]
            judge_alignment(probes)
        except ProbeFailure as failure:
            raise StageError(f"capture: {failure}. Nothing was kept") from failure
        return self._publish(notes, probes)

    @property
    def bytes_per_token(self) -> int:
        return 2 * self._contract.hidden_size * (len(self._contract.layer_ids) + 1) + 5

    def _keep_finished(self) -> None:
        for number in range(len(self._plan)):
            place = self._writer.place(number)
            if not place.exists():
                continue
            if self._writer.committed(number):
                notes = json.loads((place / NOTES).read_text(encoding="utf-8"))
                if notes["plan"] == self._digest(number):
                    self._notes[number] = notes
                    continue
            self._context.log(f"shard {number} is damaged or of another plan: it is captured again")
            shutil.rmtree(place)
        if self._notes:
            self._context.log(f"{len(self._notes)} of {len(self._plan)} shards are already captured")

    def _digest(self, number: int) -> str:
        rows = [
            [b.prefix, [[i, self._documents[i].id, self._ids[i].tolist()] for i in b.documents]]
            for b in self._plan[number]
        ]
        return hashlib.sha256(json.dumps([self._contract.hash, rows]).encode()).hexdigest()

    def _tokens(self, number: int) -> int:
        return sum(len(self._ids[i]) for batch in self._plan[number] for i in batch.documents)

    def _require_room(self) -> None:
        missing = sum(self._tokens(n) for n in range(len(self._plan)) if n not in self._notes)
        needed = missing * self.bytes_per_token
        free = shutil.disk_usage(self._context.scratch).free
        self._context.log(f"{missing} tokens to capture, {self.bytes_per_token} bytes each: {needed / 1e6:.1f} MB")
        if needed * 1.05 > free:
            raise StageError(
                f"capture needs {needed / 1e9:.2f} GB ({missing} tokens x {self.bytes_per_token} bytes), only "
                f"{free / 1e9:.2f} GB are free in {self._context.scratch}: free space or capture fewer layers"
            )

    def _compute_missing(self) -> None:
        """Compute shards in order; a thread writes each while the next is computed."""
        from concurrent.futures import Future, ThreadPoolExecutor

        total = sum(self._tokens(n) for n in range(len(self._plan)))
        pending: Future[int] | None = None
        with (
            self._engine(),
            ThreadPoolExecutor(max_workers=1) as pool,
            self._context.progress("capture", total=total, unit="tokens") as progress,
        ):
            begin = time.perf_counter()  # a server has started by now
            for number in range(len(self._plan)):
                if number not in self._notes:
                    captured = self._compute(number, progress)
                    if pending is not None:
                        pending.result()
                    pending = self._hand_over(pool, number, captured)
                    self._computed += self._tokens(number)
                else:
                    progress.advance(self._tokens(number))
            if pending is not None:
                pending.result()
            self._seconds = time.perf_counter() - begin

    @contextmanager
    def _engine(self) -> Iterator[None]:
        """What computes the missing shards; a server only if there are any."""
        from specflow.features.capture import Capturer
        from specflow.features.served import ServedCapturer

        params, target = self._params, self._target
        missing = [b for n, shard in enumerate(self._plan) if n not in self._notes for b in shard]
        if params.engine == "embedded" or not missing:
            self._capturer = Capturer(target, params.layer_ids, self._ids)
            yield
            return
        documents = {i: self._ids[i] for batch in missing for i in batch.documents}
        longest = max(map(len, documents.values()))
        with feature_server(
            params, target.path, precision=target.precision, longest=longest, context=self._context
        ) as server:
            self._capturer = ServedCapturer(server, target, params.layer_ids, documents)
            with closing(self._capturer):
                yield
            self._server = {"server_version": server.version, "retried_requests": self._capturer.retried}

    def _compute(self, number: int, progress: Any) -> dict[int, Captured]:
        captured: dict[int, Captured] = {}
        assert self._capturer is not None
        for batch in self._plan[number]:
            captured.update(zip(batch.documents, self._capturer.run(batch), strict=True))
            progress.advance(sum(len(self._ids[i]) for i in batch.documents))
        return captured

    def _hand_over(self, pool: Any, number: int, captured: dict[int, Captured]) -> Any:
        from specflow.features.document import Document

        broken = [i for i, c in captured.items() if not c.finite]
        probes = self._probe({i: c for i, c in captured.items() if i not in broken})
        notes = {
            "plan": self._digest(number),
            "probes": [asdict(p) for p in probes],
            "not_finite": [[i, self._documents[i].id] for i in broken],
        }
        self._notes[number] = notes
        import torch

        rows = [
            Document(
                index=i,
                split=document.split,
                kind=document.kind,
                id=document.id,
                greedy=document.greedy,
                token_ids_T=torch.tensor(document.ids),
                supervised_T=torch.tensor(document.supervised),
                features_TKH=c.features_TKH,
                last_hidden_TH=c.last_hidden_TH,
            )
            for i, c in captured.items()
            if i not in broken
            for document in [self._documents[i]]
        ]
        return pool.submit(self._writer.write, number, rows, extra={NOTES: notes})

    def _probe(self, captured: dict[int, Captured]) -> list[Probe]:
        """Documents spread evenly over the shard."""
        from specflow.features.probes import probe_document

        indices = list(captured)
        count = min(self._params.probe_rows, len(indices))
        chosen = {indices[(2 * n + 1) * len(indices) // (2 * count)] for n in range(count)}
        return [
            probe_document(self._target, self._params.layer_ids, self._documents[i], captured[i])
            for i in sorted(chosen)
        ]

    def _publish(self, notes: list[dict[str, Any]], probes: Sequence[Probe]) -> Metrics:
        from specflow.data.quarantine import DataError, Quarantined, enforce_share, write_quarantine
        from specflow.features.plan import computed_tokens

        bad: list[Quarantined] = [
            Quarantined(source="tokens.jsonl", row=index + 1, reason="features_not_finite", id=name)
            for note in notes
            for index, name in note["not_finite"]
        ]
        try:
            enforce_share(bad, total=len(self._documents), largest_share=self._params.max_skipped)
        except DataError as error:
            raise StageError(f"capture: {error}") from error
        self._writer.finish(len(self._plan))
        output = self._context.output
        write_quarantine(output / "quarantine.jsonl", bad)
        # Links, not moves: were the run killed here, the scratch directory would still hold every shard.
        shutil.copy2(self._context.scratch / "contract.json", output / "contract.json")
        shutil.copytree(
            self._context.scratch / "store",
            output / "store",
            copy_function=os.link,
            ignore=shutil.ignore_patterns("*.partial"),
        )
        self._require_all(len(self._documents) - len(bad))
        left_out = {index for note in notes for index, _ in note["not_finite"]}
        tokens = sum(len(ids) for index, ids in enumerate(self._ids) if index not in left_out)
        padded, padding = computed_tokens(self._ids, self._plan)
        rows = sum(p.rows for p in probes)
        return {
            "documents": len(self._documents) - len(bad),
            "tokens": tokens,
            "shards": len(self._plan),
            "bytes": tokens * self.bytes_per_token,
            "bytes_per_token": self.bytes_per_token,
            "tokens_per_second": self._computed / self._seconds if self._computed else None,
            "seconds": self._seconds,
            "forward_tokens": padded,
            "padding_share": padding / padded if padded else 0.0,
            "forward_share": padded / tokens if tokens else 0.0,
            "quarantined": len(bad),
            "engine": self._params.engine,
            **self._server,
            "precision": self._target.precision,
            "contract_hash": self._contract.hash,
            "probe_documents": len(probes),
            "probe_error": max((p.error for p in probes), default=None),
            "probe_neighbour_error": min(
                (p.neighbour_error for p in probes if p.neighbour_error is not None), default=None
            ),
            "alignment_rows": rows,
            "alignment_share": sum(p.chosen for p in probes) / rows if rows else None,
            "alignment_near_ties": sum(p.near_ties for p in probes),
        }

    def _require_all(self, expected: int) -> None:
        from specflow.features.reader import FeatureReader

        found = len(FeatureReader(self._context.output, checksums=False))
        if found != expected:
            raise StageError(f"capture: {expected} documents were asked for, the store holds {found}")
