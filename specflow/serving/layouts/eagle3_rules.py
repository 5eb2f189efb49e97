"""Lint of what only EAGLE-3 has: how features enter, what goes on to the next step, the draft vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Set

from specflow.serving.draft import Draft, Finding, Rule


def features(first_layer_one: Set[str]) -> Rule:
    """``first_layer_one``: targets whose ids the engine takes as ours only if they begin with 1."""

    def check(draft: Draft) -> Iterator[Finding]:
        method = draft.config["eagle_config"]
        ids = list(method["eagle_aux_hidden_state_layer_ids"])
        where = "eagle_config.eagle_aux_hidden_state_layer_ids"
        if len(ids) < 2:
            expected = "at least two layers: features as wide as a state are taken for one, and never fused"
            yield Finding(check="features", where=where, found=repr(ids), expected=expected)
        kind = draft.target.get("model_type")
        if kind in first_layer_one and ids[:1] != [1]:
            expected = f"1 as the first id for a {kind} target, where others are layer inputs"
            yield Finding(check="features", where=where, found=repr(ids), expected=expected)
        for key, wanted in (("use_aux_hidden_state", True), ("norm_before_fc", False)):
            if method.get(key) is not wanted:
                yield Finding(
                    check="features", where=f"eagle_config.{key}", found=repr(method.get(key)), expected=repr(wanted)
                )

    return check


def recurrence(draft: Draft) -> Iterator[Finding]:
    """Norms that are a choice of the drafter."""
    for key in ("fc_norm", "norm_output"):
        found, trained = draft.config.get(key), draft.geometry[key]
        if found is not trained:
            yield Finding(check="recurrence", where=key, found=repr(found), expected=f"{trained!r}, as trained")


def vocabulary(draft: Draft) -> Iterator[Finding]:
    """``d2t`` holds offsets to increasing ids of the target, and ``t2d`` marks exactly these."""
    import torch

    size, trained = draft.config["draft_vocab_size"], draft.geometry["draft_vocab_size"]
    if size != trained:
        yield Finding(
            check="vocabulary", where="draft_vocab_size", found=repr(size), expected=f"{trained!r}, as trained"
        )
    offsets, mask = draft.tensors.get("d2t"), draft.tensors.get("t2d")
    if offsets is None or mask is None:
        return
    if offsets.is_floating_point():
        yield Finding(check="vocabulary", where="d2t", found=str(offsets.dtype), expected="integer offsets")
        return
    ids, total = offsets + torch.arange(offsets.numel()), int(draft.target["vocab_size"])
    if not bool((ids.diff() > 0).all()) or int(ids[0]) < 0 or int(ids[-1]) >= total:
        yield Finding(
            check="vocabulary", where="d2t", found=f"ids from {int(ids.min())} to {int(ids.max())}",
            expected=f"offsets that lead to increasing ids below {total}; these may be ids themselves",
        )  # fmt: skip
    elif not torch.equal(mask.nonzero().squeeze(1), ids):
        yield Finding(
            check="vocabulary", where="t2d", found=f"{int(mask.sum())} marked tokens",
            expected=f"the {ids.numel()} tokens that d2t leads to",
        )  # fmt: skip
