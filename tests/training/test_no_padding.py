"""A pass has exactly the rows that its documents need: nothing is left for packing to save."""

from __future__ import annotations

import torch

from specflow.data.packing import pack_documents
from specflow.drafters.dflash.blocks import assemble
from specflow.drafters.training import Source

LENGTHS, BLOCK = (40, 12, 5), 4


def source(tokens: int) -> Source:
    """Every token is supervised; the last anchor is the last token that another follows."""
    return Source(
        token_ids_T=torch.arange(tokens),
        supervised_T=torch.ones(tokens, dtype=torch.bool),
        features_TKH=torch.randn(tokens, 2, 8),
        anchors=torch.tensor([1, tokens - 2]),
        key=(0, 0, tokens),
    )


def test_rows_of_a_pass_are_those_of_its_documents_whatever_their_lengths() -> None:
    alone = [assemble([source(n)], block_size=BLOCK) for n in LENGTHS]
    together = assemble([source(n) for n in LENGTHS], block_size=BLOCK)
    assert together is not None
    rows = [made.features_SKH.shape[0] for made in alone if made is not None]
    assert rows == [n - 2 for n in LENGTHS]
    assert together.features_SKH.shape[0] == together.context_positions_S.numel() == sum(rows)
    assert together.positions_NB.shape == (2 * len(LENGTHS), BLOCK)
    ends = [span.context[1] for span in together.spans]
    assert [end - span.context[0] for end, span in zip(ends, together.spans, strict=True)] == rows


def test_the_figures_of_the_documentation() -> None:
    packed = pack_documents(LENGTHS, limit=40)
    padded = len(LENGTHS) * max(LENGTHS)
    assert (padded, round(100 * (1 - sum(LENGTHS) / padded))) == (120, 52)
    assert (len(packed.packs) * 40, round(100 * packed.padding_share)) == (80, 29)
