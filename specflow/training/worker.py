"""One training process. It starts nothing: this program, torchrun or a Ray ``TorchTrainer`` call it, once per rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specflow.config.drafter import DrafterParams
from specflow.drafters.files import artifact_name
from specflow.drafters.registry import Facts, Method, get_method
from specflow.drafters.target_weights import TargetWeights
from specflow.features.reader import FeatureReader
from specflow.features.rows import usable_rows
from specflow.training.data import Documents
from specflow.training.estimate import describe_memory
from specflow.training.frozen import FrozenEnds
from specflow.training.init_from import warm_start
from specflow.training.job import Job
from specflow.training.loop import Bar, Monitor, Trainer
from specflow.training.ranks import Ranks
from specflow.training.tensor_file import write_tensors
from specflow.training.tensors import whole

SAMPLE = 8
"""Training documents whose features set the scales of a fresh network."""


def train_worker(job: Job, monitor: Monitor, *, documents: Documents | None = None) -> None:
    """Train as the rank that ``torch.distributed`` says this process is, or alone; the first writes ``job.result``.

    The result holds the weights and, as values, the state, the best evaluation and how the weights began.
    ``documents``: where they are open already. Raises ``TrainingDiverged``; ``CannotStart`` for an unfit
    ``init_from``.
    """
    ranks = Ranks.here()
    if ranks.device.type == "cuda":
        torch.cuda.set_device(ranks.device)
    torch.set_num_threads(max(1, job.threads // ranks.size))
    monitor = monitor if ranks.first else _Silent()
    params = job.drafter()
    method, target = get_method(params.method), TargetWeights(Path(job.target))
    documents = documents or open_documents(job)
    facts = facts_of(job, target)
    network = method.new_network(params, facts)
    # The same rows whether or not the others are stored.
    sampled = map(documents.get, job.train[:SAMPLE])
    sample_TKH = torch.cat([d.features_TKH[: usable_rows(d.supervised_T)] for d in sampled])
    start = method.initialise(network, params, target, sample_TKH)
    monitor.log(start)
    warm = _warm(network, params, method, monitor)
    network.to(ranks.device)
    ends = _ends(job, target).to(ranks.device)
    monitor.log(describe_memory(network, ends, documents, params.train, ranks=ranks.size))
    trainer = Trainer(
        method=method,
        network=network,
        ends=ends,
        documents=documents,
        train=job.train,
        heldout=job.heldout,
        params=params,
        scratch=Path(job.scratch),
        monitor=monitor,
        ranks=ranks,
        autocast=job.autocast,
        name=job.name,
    )
    outcome = trainer.run()
    tensors = {name: whole(value) for name, value in network.state_dict().items()}
    if ranks.first:
        values = {"state": asdict(outcome.state), "best": outcome.best, "start": start, "warm": warm}
        write_tensors(job.result, tensors, values)
    ranks.wait()


def facts_of(job: Job, target: TargetWeights) -> Facts:
    return Facts(
        config=target.config,
        layer_ids=tuple(job.layer_ids),
        mask_token_id=job.mask_token_id,
        draft_ids=None if job.draft_ids is None else tuple(job.draft_ids),
    )


def open_documents(job: Job) -> Documents:
    """The job's documents, with what its method reads of them."""
    reader, params = FeatureReader(Path(job.features)), job.drafter()
    columns = [reader.contract.layer_ids.index(layer) for layer in job.layer_ids]
    return Documents(reader, columns=columns, last_hidden=get_method(params.method).needs(params).last_hidden)


def _warm(network: nn.Module, params: DrafterParams, method: Method, monitor: Monitor) -> dict[str, Any]:
    """Take what ``init_from`` offers into the network; what the manifest says of it."""
    given = params.train.init_from
    if given is None:
        return {}
    if params.train.init_take == "state":
        return {"continues": artifact_name(Path(given))}
    found = warm_start(network, Path(given), config=method.network_config(network))
    monitor.log(found.describe())
    return {"init_from": found.to_dict()}


def _ends(job: Job, target: TargetWeights) -> FrozenEnds:
    rows = int(target.config["vocab_size"])
    tokens = torch.arange(rows) if job.softmax_tokens is None else torch.tensor(job.softmax_tokens)
    return FrozenEnds.of_target(target, softmax_tokens=tokens)


class _Silent:
    """The monitor of ranks that do not speak."""

    def log(self, message: str) -> None: ...

    @contextmanager
    def progress(self, description: str, *, total: float, unit: str = "rows") -> Iterator[Bar]:
        yield _SilentBar()


class _SilentBar:
    def advance(self, amount: float = 1) -> None: ...
    def describe(self, text: str) -> None: ...
    def figures(self, values: Mapping[str, float]) -> None: ...
