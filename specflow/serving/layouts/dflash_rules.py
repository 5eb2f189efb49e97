"""Lint of a block and of its mask token, for DFlash and the methods on its backbone."""

from __future__ import annotations

from collections.abc import Iterator

from specflow.serving.draft import Draft, Finding


def block(draft: Draft) -> Iterator[Finding]:
    size, proposals = int(draft.manifest["block_size"]), int(draft.manifest["num_proposals"])
    for where, found in (
        ("block_size", draft.config["block_size"]),
        ("dflash_config.block_size", draft.config["dflash_config"]["block_size"]),
    ):
        if found != size or size != proposals + 1:
            yield Finding(check="block", where=where, found=repr(found), expected=f"{proposals + 1}, anchor included")


def mask_token(draft: Draft) -> Iterator[Finding]:
    found, vocab = draft.config["dflash_config"]["mask_token_id"], draft.target["vocab_size"]
    where = "dflash_config.mask_token_id"
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < vocab:
        yield Finding(check="mask-token", where=where, found=repr(found), expected=f"an id in [0, {vocab})")
    if found != draft.manifest["mask_token_id"]:
        yield Finding(
            check="mask-token", where=where, found=repr(found), expected=f"{draft.manifest['mask_token_id']} (manifest)"
        )
    name = draft.config["dflash_config"].get("mask_token")
    if name != draft.manifest.get("mask_token"):
        yield Finding(
            check="mask-token", where="dflash_config.mask_token", found=repr(name),
            expected=f"{draft.manifest.get('mask_token')!r} (manifest)",
        )  # fmt: skip
    if name is not None and draft.token_ids is not None and draft.token_ids.get(name) != found:
        yield Finding(
            check="mask-token", where="dflash_config.mask_token", found=f"{name!r} with id {found}",
            expected=f"id {draft.token_ids.get(name)}, as in the target's tokenizer",
        )  # fmt: skip
