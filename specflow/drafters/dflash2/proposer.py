"""DFlash 2 at decoding time: DFlash's round with the convolutions, then a walk over the lattice of candidates.

Legend: B rows of a block, m = B - 1 proposals, H hidden size, T taps, G groups of channels, s channels of a group,
K candidates of a position, r rank, V vocabulary, n rows of all requests' blocks, R requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specflow.drafters.base import Draw, Proposal
from specflow.drafters.candidates import largest
from specflow.drafters.dflash.frozen_layer import FrozenLayer, Pair, rows_from
from specflow.drafters.dflash.network import Layer
from specflow.drafters.dflash.proposer import DFlashProposer
from specflow.drafters.dflash2.convolution import BlockConvolution
from specflow.drafters.dflash2.geometry import DFlash2Geometry
from specflow.drafters.dflash2.network import ConvolvedLayer, DFlash2Network
from specflow.drafters.dflash2.selector import CandidateSelector, greedy_path, predecessors
from specflow.drafters.linear import frozen_linear


class DFlash2Proposer(DFlashProposer):
    """Proposes a block for one request; see ``specflow.drafters.base.Proposer``."""

    geometry: DFlash2Geometry

    def __init__(
        self,
        network: DFlash2Network,
        *,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
        precision: str = "fp32",
    ) -> None:
        super().__init__(network, embed=embed, head=head, precision=precision)
        selector = network.selector
        self._selector = None if selector is None else _FrozenSelector(selector, precision=precision)

    def _frozen(self, layer: Layer) -> FrozenLayer:
        if isinstance(layer, ConvolvedLayer):
            return _FrozenConvolvedLayer(layer, self, precision=self.precision)
        return super()._frozen(layer)

    @torch.no_grad()
    def propose(self, anchor: int) -> Tensor:
        """``[m]`` int64 proposals; ties go to the lowest id."""
        if self._selector is None:
            return super().propose(anchor)
        return greedy_path(*self.lattice(anchor))

    @torch.no_grad()
    def sample(self, anchor: int, draw: Draw) -> Proposal:
        """``[m]`` int64 proposals, each drawn among its candidates after the one drawn before it.

        Every row handed to ``draw`` is made anew, so nothing outside the candidates can have a probability.
        """
        if self._selector is None:
            return super().sample(anchor, draw)
        candidates_mK, lattice_mKK = self.lattice(anchor)
        tokens, rows, at = [], [], 0
        for ids_K, scores_KK in zip(candidates_mK, lattice_mKK, strict=True):
            logits_V = scores_KK.new_full((self.geometry.vocab_size,), float("-inf"))
            logits_V[ids_K] = scores_KK[at]
            token, q_V = draw(logits_V)
            tokens.append(token)
            rows.append(q_V)
            at = int(torch.searchsorted(ids_K, token))
        return Proposal(tokens_m=torch.tensor(tokens), q_mV=torch.stack(rows))

    @torch.no_grad()
    def lattice(self, anchor: int) -> tuple[Tensor, Tensor]:
        """``[m, K]`` candidates, increasing, and ``[m, K, K]`` scores of each after each of the position before.

        Before the first position stands the anchor, whatever the index.
        """
        assert self._selector is not None  # asked for by those who have one
        hidden_mH = self.hidden(anchor)
        logits_mV = super().score(hidden_mH)
        candidates_mK = largest(logits_mV, self.geometry.selector_top_k)
        own_mK = self.geometry.shape.of(logits_mV.gather(1, candidates_mK).float())
        before_mK = predecessors(anchor, candidates_mK)
        return candidates_mK, self._selector.scores(hidden_mH, before_mK, candidates_mK, own_mK)

    def score(self, hidden_mH: Tensor) -> Tensor:
        """``[m, V]`` logits of the backbone: the selector only chooses among the most likely of them."""
        return self.geometry.shape.of(super().score(hidden_mH))


SMALL = "fp32"
"""Of projections to a few hundred numbers: narrow ones cost more to convert than they save to read."""


class _FrozenSelector:
    def __init__(self, selector: CandidateSelector, *, precision: str) -> None:
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self._predecessors, self._successors = (
            table.detach().to(dtype) for table in (selector.predecessor_codebook, selector.successor_codebook)
        )
        self._projection = frozen_linear(selector.hidden_projection.weight, precision=SMALL)

    def scores(self, hidden_mH: Tensor, before_mP: Tensor, candidates_mK: Tensor, own_mK: Tensor) -> Tensor:
        """``[m, P, K]``: a candidate's own logit and what the selector adds to it."""
        left_mPr = self._predecessors[before_mP].float() * self._projection(hidden_mH).unsqueeze(1)
        right_mKr = self._successors[candidates_mK].float()
        return torch.baddbmm(own_mK.unsqueeze(1), left_mPr, right_mKr.transpose(1, 2))


class _FrozenConvolvedLayer(FrozenLayer):
    def __init__(self, layer: ConvolvedLayer, owner: DFlashProposer, *, precision: str) -> None:
        super().__init__(layer, owner, precision=precision)
        self._attention_conv = _FrozenConvolution(layer.attention_conv)
        self._mlp_conv = _FrozenConvolution(layer.mlp_conv)

    def __call__(self, x_nH: Tensor, seen: Sequence[Pair], cos: Tensor, sin: Tensor, *, first_row: int) -> Tensor:
        """As DFlash's; every row is carried to the end, because those after it are mixed from it."""
        requests = len(seen)
        inputs, delta = self._attention_conv.prepare(self._normalise(x_nH) * self._input_norm, requests)
        attended = self._o(self._mix(inputs, seen, cos, sin))
        x = x_nH + self._attention_conv.finish(attended, delta, requests)
        inputs, delta = self._mlp_conv.prepare(self._normalise(x) * self._mlp_norm, requests)
        return rows_from(x + self._mlp_conv.finish(self._mlp(inputs), delta, requests), requests, first_row)


class _FrozenConvolution:
    def __init__(self, convolution: BlockConvolution) -> None:
        self._taps, self._groups = convolution.taps, convolution.groups
        self._base_2TGs = convolution.base_kernel.detach().float().view(2, self._taps, self._groups, -1).clone()
        self._projection = frozen_linear(convolution.kernel_projection.weight, precision=SMALL)

    def prepare(self, x_nH: Tensor, requests: int) -> tuple[Tensor, Tensor]:
        """The mixed rows and the coefficients that ``finish`` mixes by."""
        delta = self._projection(x_nH).view(len(x_nH), 2, self._taps, self._groups, 1)
        coefficients = self._base_2TGs + delta
        return self.finish(x_nH, coefficients[:, 0], requests), coefficients[:, 1]

    def finish(self, x_nH: Tensor, coefficients_nTGs: Tensor, requests: int) -> Tensor:
        x = x_nH.view(requests, -1, self._groups, x_nH.shape[1] // self._groups)  # taps stay within a block
        by_tap = coefficients_nTGs.view(*x.shape[:2], *coefficients_nTGs.shape[1:]).unbind(2)
        out = x * by_tap[0]
        for tap in range(1, min(self._taps, x.shape[1])):
            out[:, tap:].addcmul_(by_tap[tap][:, tap:], x[:, :-tap])
        return out.view(len(x_nH), -1)
