"""Rounds of many texts side by side, as decoding would make them one after the other.

Depth 0 of every text is computed once; a round is one chain per text, each over its own choices.

Legend: N chains, S context rows of all texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from specflow.drafters.dflash.attention import Span
from specflow.drafters.eagle3.choice import best_tokens
from specflow.drafters.eagle3.forward import Places, Rollout
from specflow.drafters.eagle3.network import Eagle3Network
from specflow.drafters.training import Ends, Text


class Eagle3Walk:
    """See ``specflow.drafters.training.Walk``."""

    @torch.no_grad()
    def __init__(self, network: Eagle3Network, ends: Ends, texts: Sequence[Text]) -> None:
        self._network, self._ends, self._texts = network, ends, texts
        device = self._device = network.fc.weight.device
        rows = [text.features_TKH.shape[0] for text in texts]
        self._first_row: list[int] = torch.tensor([0, *rows]).cumsum(0).tolist()
        positions_S = torch.cat([torch.arange(n) for n in rows]).to(device)
        spans = [Span(context=span, blocks=span) for span in zip(self._first_row, self._first_row[1:], strict=False)]
        # The last row of a text may have no token behind it: nothing is proposed from there.
        following = [F.pad(text.token_ids_T[1 : n + 1], (0, 1))[:n] for text, n in zip(texts, rows, strict=True)]
        every = Places(spans=spans, visible_N=positions_S + 1, positions_N=positions_S)
        self._rollout = Rollout(network)
        tokens_SW = self._rollout.read_tokens(ends.embed(torch.cat(following).to(device)).float())
        features_SKH = torch.cat([text.features_TKH.to(device).float() for text in texts])
        self._state_SH = self._rollout.begin(features_SKH, tokens_SW, every)

    @torch.no_grad()
    def accepted(self, places: Sequence[tuple[int, int]]) -> list[int]:
        rollout, steps = self._rollout, self._network.geometry.steps
        rows_N = torch.tensor([self._first_row[t] + a - 1 for t, a in places], device=self._device)
        visible_N = torch.tensor([a for _, a in places], device=self._device)
        rows = self._first_row
        spans = [Span(context=(rows[t], rows[t + 1]), blocks=(n, n + 1)) for n, (t, _) in enumerate(places)]
        # The first token of a text has no row before it: the state is zero, as the proposer's.
        state_NH = self._state_SH[rows_N.clamp_min(0)] * (visible_N > 0).unsqueeze(1)
        hidden, state_NH = rollout.finish(state_NH)
        chains, chosen = rollout.new_chains(), [best_tokens(self._network, self._ends, hidden)]
        for depth in range(1, steps):
            here = Places(spans=spans, visible_N=visible_N, positions_N=visible_N - 1 + depth)
            tokens_NW = rollout.read_tokens(self._ends.embed(chosen[-1]).float())
            hidden, state_NH = rollout.finish(rollout.advance(state_NH, tokens_NW, here, chains))
            chosen.append(best_tokens(self._network, self._ends, hidden))
        proposed = torch.stack(chosen, dim=1).cpu()
        return [self._agreeing(proposed[n], t, a) for n, (t, a) in enumerate(places)]

    def _agreeing(self, proposed_m: torch.Tensor, text: int, anchor: int) -> int:
        """Proposals that are the text's supervised tokens, up to the first other one."""
        ids_T, supervised_T = self._texts[text].token_ids_T, self._texts[text].supervised_T
        wanted = slice(anchor + 1, anchor + 1 + proposed_m.numel())
        right = (proposed_m[: ids_T[wanted].numel()] == ids_T[wanted]) & supervised_T[wanted]
        return int(right.long().cumprod(0).sum())
