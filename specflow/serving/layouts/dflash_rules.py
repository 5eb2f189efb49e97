"""Lint of a block and of its mask token, for DFlash and the methods on its backbone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specflow.serving.draft import Draft, Finding, Rule
from specflow.serving.lint_rules import each


def _two_forms(draft: Draft) -> Iterator[Finding]:
    top, nested = draft.config["block_size"], draft.config["dflash_config"]["block_size"]
    if not draft.ours and (top != nested or not isinstance(top, int) or top < 2):
        expected = "one number of at least 2, anchor included"
        yield Finding(check="block", where="block_size", found=f"{top!r} and {nested!r}", expected=expected)


def _stated_block(draft: Draft) -> Iterator[Finding]:
    size, proposals = int(draft.manifest["block_size"]), int(draft.manifest["num_proposals"])
    for where, found in (
        ("block_size", draft.config["block_size"]),
        ("dflash_config.block_size", draft.config["dflash_config"]["block_size"]),
    ):
        if found != size or size != proposals + 1:
            yield Finding(check="block", where=where, found=repr(found), expected=f"{proposals + 1}, anchor included")


block = each(_two_forms, _stated_block)


def _mask_id(draft: Draft) -> Iterator[Finding]:
    found, vocab = draft.config["dflash_config"].get("mask_token_id"), draft.target["vocab_size"]
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < vocab:
        where = "dflash_config.mask_token_id"
        yield Finding(check="mask-token", where=where, found=repr(found), expected=f"an id in [0, {vocab})")


def _stated_mask(draft: Draft) -> Iterator[Finding]:
    for key in ("mask_token_id", "mask_token"):
        found, stated = draft.config["dflash_config"].get(key), draft.manifest.get(key)
        if found != stated:
            where = f"dflash_config.{key}"
            yield Finding(check="mask-token", where=where, found=repr(found), expected=f"{stated!r} (manifest)")


def _tokenizer_s_mask(draft: Draft) -> Iterator[Finding]:
    found, name = (draft.config["dflash_config"].get(key) for key in ("mask_token_id", "mask_token"))
    if name is not None and draft.token_ids is not None and draft.token_ids.get(name) != found:
        yield Finding(
            check="mask-token", where="dflash_config.mask_token", found=f"{name!r} with id {found}",
            expected=f"id {draft.token_ids.get(name)}, as in the target's tokenizer",
        )  # fmt: skip


mask_token = each(_mask_id, _stated_mask, _tokenizer_s_mask)


def visibility(keys: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Rule:
    """Windows and direction of every layer, which an engine would choose by defaults of its own."""

    def check(draft: Draft) -> Iterator[Finding]:
        for key, value in keys(draft.geometry).items():
            if draft.config.get(key) != value:
                yield Finding(check="visibility", where=key, found=repr(draft.config.get(key)), expected=repr(value))

    return check
