"""What the layouts of EAGLE and EAGLE-3 share: a decoder layer's tensors, and how rounds are asked for.

A round is a chain, or where the manifest of an export has ``tree``, a dynamic tree. SGLang counts the anchor among
``--speculative-num-draft-tokens``, as we do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specflow.serving.draft import Draft, Finding, Rule

TREE = "tree"
"""Key of an export's manifest: ``steps``, ``topk`` and ``num_draft_tokens`` of a tree, none: chains."""


def layer_shapes(config: Mapping[str, Any], *, width: int) -> dict[str, tuple[int, ...]]:
    """Of a layer without its input norms; ``width``: of what query, key and value are made of."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    return {
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, width),
        "self_attn.k_proj.weight": (keys, width),
        "self_attn.v_proj.weight": (keys, width),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }


def round_flags(manifest: Mapping[str, Any], *, algorithm: str) -> dict[str, str]:
    """Speculative flags; ``ValueError`` where the manifest contradicts itself, or SGLang would draft another tree."""
    steps, block = int(manifest["num_proposals"]), int(manifest["block_size"])
    if block != steps + 1:
        raise ValueError(f"{manifest['method']}: expected block_size = num_proposals + 1 = {steps + 1}, found {block}")
    tree = manifest.get(TREE) or {"steps": steps, "topk": 1, "num_draft_tokens": steps + 1}
    if tree["topk"] == 1 and tree["num_draft_tokens"] != tree["steps"] + 1:
        raise ValueError(
            f"a tree of topk 1 is a chain: expected num_draft_tokens = steps + 1 = {tree['steps'] + 1}, found "
            f"{tree['num_draft_tokens']}"
        )
    return {
        "--speculative-algorithm": algorithm,
        "--speculative-num-steps": str(tree["steps"]),
        "--speculative-eagle-topk": str(tree["topk"]),
        "--speculative-num-draft-tokens": str(tree["num_draft_tokens"]),
    }


def steps(*place: str) -> Rule:
    """``place``: keys that lead to the number of steps in the config."""

    def check(draft: Draft) -> Iterator[Finding]:
        found: Any = draft.config
        for key in place:
            found = found[key]
        proposals, block = int(draft.manifest["num_proposals"]), int(draft.manifest["block_size"])
        if found != proposals or block != proposals + 1:
            yield Finding(
                check="steps", where=".".join(place), found=f"{found!r}, block_size {block}",
                expected=f"{proposals} (manifest), and a block of one more",
            )  # fmt: skip

    return check
