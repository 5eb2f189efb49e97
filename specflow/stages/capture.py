"""``capture``: token documents in, the target's features of them out, in Zarr shards.

Finished shards survive a kill in the scratch directory; a resumed run verifies them and computes
the rest. The shards are a pure function of documents and parameters, whoever makes them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.config.capture import CaptureParams
from specflow.stages.contract import Arity, Artifact, Context, Estimate, Inputs, Metrics, Problem, StageError
from specflow.stages.feature_server import check_server, feature_server, served_precision

if TYPE_CHECKING:
    from specflow.data.quarantine import Quarantined
    from specflow.data.stored import StoredDocuments
    from specflow.features.engine import CaptureJob
    from specflow.features.making import Notes, ShardTask
    from specflow.features.probes import Probe
    from specflow.targets.target import Target

NAME = "capture"
KIND = "features"
INPUTS = {"target": Arity.ONE, "tokens": Arity.ONE}
STORED_PROBES = 2
"""Documents read back from the finished store and computed again, whatever ``probe_rows`` is."""


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
    width = 2 if params.storage == "bfloat16" else 1
    return Estimate(
        note=f"{width * vectors} bytes x hidden size per token ({len(params.layer_ids)} layers and last_hidden in "
        f"{params.storage}); tokens and hidden size are known once the target and tokenize have run"
    )


def run(inputs: Inputs, params: CaptureParams, context: Context) -> Metrics:
    from specflow.data.stored import StoredDocuments
    from specflow.features.location import StorageError

    documents = StoredDocuments(inputs.one("tokens").path)
    try:
        job = _job(inputs.one("target"), documents, params, context)
        _keep_where_asked(params, context)
        return _Capture(job, documents, context).run()
    except StorageError as error:
        raise StageError(f"capture: {error}") from error
    finally:
        documents.close()


def _keep_where_asked(params: CaptureParams, context: Context) -> None:
    """Shards go to ``capture.store_url``, if any, under the artifact's key; writers find it in ``scratch``."""
    from specflow.features.location import Bucket, keep_elsewhere, kept_elsewhere

    before, url, options = kept_elsewhere(context.scratch), params.store_url, params.store_options.model_dump()
    wanted = Bucket(f"{url}/{context.key}", options) if url else None
    if before and str(wanted) != str(before):
        raise StageError(
            f"expected capture.store_url as it was when this capture began ({before}), found {url}: set it back to go "
            "on, or remove the unfinished work with `specflow gc`"
        )
    if wanted:
        keep_elsewhere(context.scratch, wanted)
        context.log(f"shards are written to {wanted}")


def _job(target: Artifact, documents: StoredDocuments, params: CaptureParams, context: Context) -> CaptureJob:
    """What this run does, with everything decided that the parameters leave to the machine."""
    from specflow.features.contract import FeatureContract
    from specflow.features.engine import CaptureJob
    from specflow.features.quantise import DTYPES
    from specflow.stages.fitting import target_side
    from specflow.stages.machine import resolved, resolved_device

    side = target_side(target)
    _require_layers(params.layer_ids, side.values["layers"], where=side.where)
    served = params.engine == "sglang"
    asked = served_precision(params, target.path, context) if served else params.precision
    device = resolved_device(context.scratch, params.device)
    precision, threads = resolved(
        context.scratch,
        target.path,
        precision=asked,
        threads=params.threads,
        workers=params.workers,
        device=device,
    )
    contract = FeatureContract.for_target(
        side.values,
        layer_ids=params.layer_ids,
        hidden_size=side.values["hidden_size"],
        precision=precision,
        dtype=DTYPES[params.storage],
        rows=params.rows,
        thinking=documents.thinking,
    )
    return CaptureJob(
        target=target.path,
        root=context.scratch,
        contract=contract,
        params=params,
        precision=precision,
        threads=threads,
        device=device,
    )


def _require_layers(layer_ids: tuple[int, ...], num_layers: int, *, where: str) -> None:
    wrong = [k for k in layer_ids if not 0 <= k < num_layers - 1]
    if wrong:
        last = f"; {num_layers - 1} is the last layer, whose output is kept as last_hidden anyway"
        raise StageError(
            f"capture.layer_ids: {list(layer_ids)} asks for {wrong}, but the target has {num_layers} layers ({where}): "
            f"expected ids from 0 to {num_layers - 2}{last if num_layers - 1 in wrong else ''}"
        )


class _Capture:
    """One run of the stage: plan, shards, probes, metrics."""

    def __init__(self, job: CaptureJob, documents: StoredDocuments, context: Context) -> None:
        from specflow.features.plan import plan_shards
        from specflow.features.store import FeatureWriter

        self._job, self._contract, self._params = job, job.contract, job.params
        self._documents, self._context = documents, context
        self._ids = documents.ids
        self._plan = plan_shards(
            self._ids,
            batch_tokens=job.params.batch_tokens,
            shard_tokens=job.params.shard_tokens,
            share_prefixes=job.params.share_prefixes,
        )
        self._writer = FeatureWriter(context.scratch, job.contract)
        self._notes: dict[int, Notes] = {}
        self._loaded: Target | None = None
        self._seconds = 0.0
        self._computed = 0
        self._server: dict[str, Any] = {}
        self._retried: list[int] = []

    def run(self) -> Metrics:
        from specflow.features.lock import ShardBusy
        from specflow.features.probes import Probe, ProbeFailure, judge_alignment
        from specflow.features.workers import WorkerFailed
        from specflow.targets.base import TargetError

        self._keep_finished()
        self._require_room()
        try:
            self._compute_missing()
            notes = [self._notes[n] for n in range(len(self._plan))]
            probes = [Probe(**p) for note in notes for p in note["probes"]]
            judge_alignment(probes)
        except ProbeFailure as failure:
            raise StageError(f"capture: {failure}. No artifact was made") from failure
        except (ShardBusy, WorkerFailed, TargetError) as failure:
            raise StageError(f"capture: {failure}") from failure
        return self._publish(notes, probes)

    @property
    def bytes_per_token(self) -> int:
        return self._params.bytes_per_token(self._contract.hidden_size)

    def _keep_finished(self) -> None:
        from specflow.features.resume import NotUsable, finished_notes

        for number in filter(self._writer.exists, range(len(self._plan))):
            digest = self._task(number).digest(self._contract.hash)
            try:
                self._notes[number] = finished_notes(self._writer, number, digest)
            except NotUsable as reason:
                self._context.log(f"{reason}: it is captured again")
        if self._notes:
            self._context.log(f"{len(self._notes)} of {len(self._plan)} shards are already captured")

    def _task(self, number: int) -> ShardTask:
        from specflow.features.making import ShardTask

        batches = self._plan[number]
        documents = {i: self._documents[i] for batch in batches for i in batch.documents}
        return ShardTask(number=number, batches=batches, documents=documents)

    def _tokens(self, number: int) -> int:
        return sum(len(self._ids[i]) for batch in self._plan[number] for i in batch.documents)

    def _require_room(self) -> None:
        shards = [self._tokens(n) for n in range(len(self._plan)) if n not in self._notes]
        missing = sum(shards)
        each = self.bytes_per_token
        self._context.log(f"{missing} tokens to capture, {each} bytes each: {missing * each / 1e6:.1f} MB")
        if self._params.store_url:
            # Only the shards in flight pass this disk; how much room a bucket has cannot be asked.
            missing = sum(sorted(shards)[-2:])
        needed = missing * self.bytes_per_token
        free = shutil.disk_usage(self._context.scratch).free
        if needed * 1.05 > free:
            raise StageError(
                f"capture needs {needed / 1e9:.2f} GB ({missing} tokens x {self.bytes_per_token} bytes), only "
                f"{free / 1e9:.2f} GB are free in {self._context.scratch}: free space or capture fewer layers"
            )

    def _compute_missing(self) -> None:
        from specflow.features.workers import make_shards

        missing = [n for n in range(len(self._plan)) if n not in self._notes]
        if not missing:
            return
        workers = min(self._params.workers, len(missing))
        if workers > 1:
            self._context.log(f"{workers} workers, {self._job.threads} threads each, on {self._job.device}")
        total = sum(self._tokens(n) for n in range(len(self._plan)))
        self._computed = sum(self._tokens(n) for n in missing)
        with (
            self._engine(missing, workers) as job,
            self._context.progress("capture", total=total, unit="tokens") as progress,
        ):
            target = self._target() if workers == 1 else None
            begin = time.perf_counter()  # a server has started by now
            progress.advance(total - self._computed)
            made = make_shards(
                job,
                (self._task(n) for n in missing),
                workers=workers,
                target=target,
                logs=self._context.scratch / "logs",
                advance=progress.advance,
                retried=self._retried.append,
            )
            self._notes.update(made)
            self._seconds = time.perf_counter() - begin

    @contextmanager
    def _engine(self, missing: Sequence[int], workers: int) -> Iterator[CaptureJob]:
        """The job, with a server for it if that is what computes."""
        if self._params.engine == "embedded":
            yield self._job
            return
        longest = max(len(self._ids[i]) for n in missing for batch in self._plan[n] for i in batch.documents)
        with feature_server(
            self._params,
            self._job.target,
            precision=self._job.precision,
            longest=longest,
            context=self._context,
            workers=workers,
        ) as server:
            yield replace(self._job, server=server.share(workers))
            self._server = {"server_version": server.version, "retried_requests": sum(self._retried)}

    def _publish(self, notes: list[Notes], probes: Sequence[Probe]) -> Metrics:
        from specflow.data.quarantine import DataError, Quarantined, enforce_share, write_quarantine
        from specflow.features.plan import computed_tokens

        bad: list[Quarantined] = [
            Quarantined(source="tokens.jsonl", row=index + 1, reason="features_not_finite", id=name)
            for note in notes
            for index, name in note["not_finite"]
        ]
        try:
            if self._documents:
                enforce_share(bad, total=len(self._documents), largest_share=self._params.max_skipped)
        except DataError as error:
            raise StageError(f"capture: {error}") from error
        self._writer.finish(len(self._plan))
        output = self._context.output
        write_quarantine(output / "quarantine.jsonl", bad)
        self._writer.publish(output)
        stored = self._require_all(len(self._documents) - len(bad))
        left_out = {index for note in notes for index, _ in note["not_finite"]}
        tokens = sum(len(ids) for index, ids in enumerate(self._ids) if index not in left_out)
        padded, padding = computed_tokens(self._ids, self._plan)
        rows, head = sum(p.rows for p in probes), sum(p.head_rows for p in probes)
        return {
            "documents": len(self._documents) - len(bad),
            "tokens": tokens,
            "shards": len(self._plan),
            "bytes": self._writer.stored_bytes(len(self._plan)),
            "bytes_per_token": self.bytes_per_token,
            "tokens_per_second": self._computed / self._seconds if self._computed else None,
            "seconds": self._seconds,
            "forward_tokens": padded,
            "padding_share": padding / padded if padded else 0.0,
            "forward_share": padded / tokens if tokens else 0.0,
            "quarantined": len(bad),
            "engine": self._params.engine,
            **self._server,
            "precision": self._job.precision,
            "threads": self._job.threads,
            "device": self._job.device,
            "workers": self._params.workers,
            "contract_hash": self._contract.hash,
            "probe_documents": len(probes),
            "probe_error": max((p.error for p in probes), default=None),
            "probe_neighbour_error": min(
                (p.neighbour_error for p in probes if p.neighbour_error is not None), default=None
            ),
            "alignment_rows": rows,
            "alignment_share": sum(p.chosen for p in probes) / rows if rows else None,
            "alignment_near_ties": sum(p.near_ties for p in probes),
            "head_rows": head,
            "head_share": sum(p.head_equal for p in probes) / head if head else None,
            "head_near_ties": sum(p.head_near_ties for p in probes),
            "stored_documents_probed": stored,
        }

    def _target(self) -> Target:
        """In this process; loaded when first needed."""
        from specflow.features.making import load_target

        self._loaded = self._loaded or load_target(self._job)
        return self._loaded

    def _require_all(self, expected: int) -> int:
        """The store as a reader sees it: every document, and some probed once more; returns how many."""
        from specflow.features.probes import ProbeFailure, probe_store
        from specflow.features.reader import FeatureReader

        reader = FeatureReader(self._context.output, checksums=False)
        if len(reader) != expected:
            raise StageError(f"capture: {expected} documents were asked for, the store holds {len(reader)}")
        try:
            return len(probe_store(self._target(), reader, documents=STORED_PROBES))
        except ProbeFailure as failure:
            raise StageError(f"capture: read back from the store, {failure}") from failure
