"""Layer ids: ours always mean the output of a layer; what SGLang's mean depends on model and capture convention.

``--enable-return-aux-hidden-states`` borrows a speculative algorithm's hooks, so that the ids have its meaning
(SGLang 0.5.23). Most hooks read what enters layer ``id + 1``, which is the output of layer ``id``; the exceptions
stand here and nowhere else. Rows come in the order of the layers, whatever the order of the ids.
"""

from __future__ import annotations

from collections.abc import Sequence

DFLASH, EAGLE3 = "DFLASH", "EAGLE3"
CONVENTIONS = frozenset({"dflash", "dspark", "eagle3"})
ONLY_EAGLE3 = frozenset(
    {
        "ApertusForCausalLM", "BailingMoeForCausalLM", "BailingMoeV2ForCausalLM", "ExaoneMoEForCausalLM",
        "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "Glm4MoeForCausalLM", "LongcatFlashForCausalLM",
        "MiniMaxM2ForCausalLM", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen2_5_VLForConditionalGeneration",
    }
)  # fmt: skip
"""Models without the other hooks. In all of them an id is the layer whose output is meant."""
RAW_UNLESS_FIRST_IS_ONE = ("DeepseekV2", "DeepseekV3", "DeepseekV32", "Glm4MoeLite")
RAW_IF_THE_LAST_IS_THE_END = ("GptOss",)
LAYER_INPUTS = ("MuseGlimmer",)


def convention_for(architecture: str) -> str:
    """The algorithm to name when a server is started for capture."""
    return EAGLE3 if architecture in ONLY_EAGLE3 else DFLASH


def outputs_meant(architecture: str, method: str, ids: Sequence[int], *, num_layers: int) -> tuple[int, ...]:
    """The layers whose output a server returns that was started with ``ids``, in the order of its columns.

    ``method``: ``dflash``, ``dspark`` or ``eagle3``. -1 is the embedding.
    """
    entered = architecture.startswith(LAYER_INPUTS)
    if method == "eagle3":
        entered = (architecture.startswith(RAW_UNLESS_FIRST_IS_ONE) and ids[0] != 1) or (
            architecture.startswith(RAW_IF_THE_LAST_IS_THE_END) and max(ids) == num_layers
        )
    return tuple(sorted(k - 1 if entered else k for k in ids))
