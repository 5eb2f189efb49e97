"""Rounds of many texts side by side, as decoding would make them one after the other; and chains over given texts.

Depth 0 of every text is computed once; a round is one chain per text, each over its own choices.

Legend: N chains, S context rows of all texts, K features of a row, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specflow.drafters.devices import to_device
from specflow.drafters.dflash.attention import Span
from specflow.drafters.rollout_forward import Embed, Places, Rollout
from specflow.drafters.rollouts import Rollouts, starts_before
from specflow.drafters.training import Source, Text

Choose = Callable[[Tensor], Tensor]
"""A token for each of ``[..., H]`` rows."""


class StateWalk:
    """See ``specflow.drafters.training.Walk``."""

    @torch.no_grad()
    def __init__(
        self,
        rollout: Rollout,
        texts: Sequence[Text],
        features: Sequence[Tensor],
        *,
        embed: Embed,
        choose: Choose,
        steps: int,
        device: torch.device,
    ) -> None:
        """``features``: ``[rows, K, H]`` of each text, as stored."""
        self._rollout, self._texts, self._embed, self._choose = rollout, texts, embed, choose
        self._steps, self._device = steps, device
        rows = [part.shape[0] for part in features]
        self._first_row: list[int] = torch.tensor([0, *rows]).cumsum(0).tolist()
        positions_S = torch.cat([torch.arange(n) for n in rows]).to(device)
        spans = [Span(context=span, blocks=span) for span in zip(self._first_row, self._first_row[1:], strict=False)]
        # The last row of a text may have no token behind it: nothing is proposed from there.
        following = [F.pad(text.token_ids_T[1 : n + 1], (0, 1))[:n] for text, n in zip(texts, rows, strict=True)]
        every = Places(spans=spans, visible_N=positions_S + 1, positions_N=positions_S)
        tokens_SY = rollout.read_tokens(embed(torch.cat(following).to(device)).float())
        features_SKH = torch.cat([part.to(device).float() for part in features])
        self._state_SH = rollout.begin(features_SKH, tokens_SY, every)

    @torch.no_grad()
    def accepted(self, places: Sequence[tuple[int, int]]) -> list[int]:
        rollout, rows = self._rollout, self._first_row
        rows_N = torch.tensor([rows[t] + a - 1 for t, a in places], device=self._device)
        visible_N = torch.tensor([a for _, a in places], device=self._device)
        spans = [Span(context=(rows[t], rows[t + 1]), blocks=(n, n + 1)) for n, (t, _) in enumerate(places)]
        # The first token of a text has no row before it: the state is zero, as the proposer's.
        state_NH = self._state_SH[rows_N.clamp_min(0)] * (visible_N > 0).unsqueeze(1)
        hidden, state_NH = rollout.finish(state_NH)
        chains, chosen = rollout.new_chains(), [self._choose(hidden)]
        for depth in range(1, self._steps):
            here = Places(spans=spans, visible_N=visible_N, positions_N=visible_N - 1 + depth)
            tokens_NY = rollout.read_tokens(self._embed(chosen[-1]).float())
            hidden, state_NH = rollout.finish(rollout.advance(state_NH, tokens_NY, here, chains))
            chosen.append(self._choose(hidden))
        proposed = torch.stack(chosen, dim=1).cpu()
        return [self._agreeing(proposed[n], t, a) for n, (t, a) in enumerate(places)]

    def _agreeing(self, proposed_m: Tensor, text: int, anchor: int) -> int:
        """Proposals that are the text's supervised tokens, up to the first other one."""
        ids_T, supervised_T = self._texts[text].token_ids_T, self._texts[text].supervised_T
        wanted = slice(anchor + 1, anchor + 1 + proposed_m.numel())
        right = (proposed_m[: ids_T[wanted].numel()] == ids_T[wanted]) & supervised_T[wanted]
        return int(right.long().cumprod(0).sum())


@torch.no_grad()
def teacher_forced(
    sources: Sequence[Source],
    hidden_of: Callable[[Rollouts], Tensor],
    *,
    choose: Choose,
    steps: int,
    device: torch.device,
) -> tuple[int, int]:
    """``(right, judged)`` proposals of chains at the sources' anchors, given the right text before each.

    ``hidden_of``: ``[L, N, H]`` of given chains.
    """
    right = judged = 0
    for source in sources:
        anchors_n = source.anchors[source.anchors >= 1]
        if not anchors_n.numel():
            continue
        hidden_mnH = hidden_of(to_device(starts_before(source, anchors_n - 1, depths=steps), device))
        wanted_mn = anchors_n + 1 + torch.arange(steps).unsqueeze(1)
        inside = wanted_mn < source.token_ids_T.numel()
        index = wanted_mn.clamp(max=source.token_ids_T.numel() - 1)
        valid = (source.supervised_T[index] & inside).long().cumprod(dim=0).bool()
        found_mn = choose(hidden_mnH).cpu()
        right += int((found_mn == source.token_ids_T[index])[valid].sum())
        judged += int(valid.sum())
    return right, judged
