"""Features from an SGLang server, behind the interface of the in-process capturer.

Legend: T tokens, K captured layers, H hidden size.
The server returns outputs of inner layers and nothing else: where it keeps layers it gives no last state, and its hooks
do not reach the last layer's output. So the output of the last layer but one is asked for as well, and the target in
this process runs the last layer and the final norm over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from specflow.features.capture import Captured
from specflow.features.flight import Flight
from specflow.features.plan import Batch
from specflow.targets.sglang.rows import WrongRows, rows_of
from specflow.targets.sglang.server import FeatureServer
from specflow.targets.target import Target


class ServedCapturer:
    """``run`` as :class:`specflow.features.capture.Capturer`. ``close`` ends what is under way.

    ``documents``: token ids by number, in the order in which they are needed; those of other shards may replace them.
    Requests go out ahead of ``run``, in that order.
    """

    def __init__(
        self,
        server: FeatureServer,
        target: Target,
        layer_ids: tuple[int, ...],
        documents: Mapping[int, Sequence[int]],
    ) -> None:
        self._server, self._target, self._documents = server, target, documents
        self._columns = [server.layer_ids.index(k) for k in layer_ids]
        self._before_last = server.layer_ids.index(target.num_layers - 2)
        self._client = server.access.client()
        self._flight: Flight[Tensor] = Flight(
            self._ask, cost=self._cost, budget=server.tokens, most=server.access.concurrency
        )
        self._expected: set[int] = set()

    @property
    def retried(self) -> int:
        """Tries that failed and were repeated."""
        return self._client.retried

    def run(self, batch: Batch) -> list[Captured]:
        """Features of the batch's documents, in its order; a shared prefix is not used, each is asked for whole.

        Raises :class:`specflow.targets.retrying.ServerError`, or :class:`WrongRows` naming the document.
        """
        if not self._expected.issuperset(batch.documents):
            order = list(self._documents)
            ahead = order[order.index(batch.documents[0]) :]
            self._expected = {*ahead, *batch.documents}
            self._flight.expect([*batch.documents, *(i for i in ahead if i not in batch.documents)])
        return [self._captured(i) for i in batch.documents]

    def close(self) -> None:
        self._flight.cancel()
        self._flight.call(self._client.__aexit__(None, None, None))
        self._flight.close()

    def _captured(self, index: int) -> Captured:
        rows_TKH = self._flight.take(index)
        self._expected.discard(index)
        last_TH = self._target.finish(self._documents[index], rows_TKH[:, self._before_last])
        return Captured(rows_TKH[:, self._columns].bfloat16(), last_TH.bfloat16().cpu())

    async def _ask(self, index: int) -> Tensor:
        ids = list(self._documents[index])
        reply = await self._client.hidden_states(ids)
        layers, hidden = len(self._server.layer_ids), self._target.hidden_size
        try:
            rows = torch.from_numpy(rows_of(reply, ids, width=layers * hidden))
            _require_dtype(rows, self._server.precision)
        except WrongRows as error:
            where = f"{self._server.access.url}, document {index} ({len(ids)} tokens)"
            raise WrongRows(f"{where}: {error}") from error
        return rows.view(len(ids), layers, hidden)

    def _cost(self, index: int) -> int:
        """Tokens in whole pages: so the server counts what a pass takes."""
        page = self._server.page
        return -(-len(self._documents[index]) // page) * page


def _require_dtype(rows: Tensor, precision: str) -> None:
    """bfloat16 values come back exactly, others do not fit: the dtype is seen, not believed."""
    finite = rows[rows.isfinite()]
    exact = torch.equal(finite.bfloat16().float(), finite)
    if finite.numel() and exact != (precision == "bf16"):
        raise WrongRows(f"the server is to compute in {precision}, its values are {'bf16' if exact else 'not'}")
