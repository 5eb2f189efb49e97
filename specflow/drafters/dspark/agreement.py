"""Which labels are what the drafter chooses, when the tokens before them are the text's."""

from __future__ import annotations

from torch import Tensor

from specflow.drafters.dspark.network import DSparkNetwork
from specflow.drafters.training import Correction, Ends


def agreement(
    network: DSparkNetwork, ends: Ends, hidden_NMH: Tensor, anchor_ids_N: Tensor, labels_NM: Tensor, valid_NM: Tensor
) -> Tensor:
    """Bool for every valid label, in order: the corrected logits are largest there, over the whole vocabulary.

    Up to the first label that is not, this is the free-running walk too: what was chosen before is then the text.
    """
    code_NMr = network.markov_head.codes(hidden_NMH, network.embed_before(anchor_ids_N, labels_NM))
    correction = Correction(code_Mr=code_NMr[valid_NM], table_Vr=network.markov_head.markov_w2.weight)
    return ends.agrees(hidden_NMH[valid_NM], labels_NM[valid_NM], correction)
