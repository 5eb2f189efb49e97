"""``target``: the frozen model, once, as a Hugging Face directory in the artifact store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.config.target import TargetParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem, StageError

if TYPE_CHECKING:
    from specflow.targets.source import Source

NAME = "target"
KIND = "target"
INPUTS: Mapping[str, Arity] = {}
GGUF_GROWTH = 3.5
"""A GGUF file of 4 to 5 bits a weight against 16 bits."""


def check(params: TargetParams) -> Iterable[Problem]:
    from specflow.targets.base import TargetError
    from specflow.targets.source import FORMS, parse_source, problems

    try:
        source = parse_source(params.source)
        for found, expected in problems(source):
            yield Problem(where="source", found=found, expected=expected)
    except TargetError as problem:
        yield Problem(where="source", found=str(problem), expected=FORMS)
        return
    if params.revision is not None and source.kind != "hub":
        yield Problem(where="revision", found=params.revision, expected="no revision: the source is not a hub id")


def files(params: TargetParams) -> Iterable[Path]:
    from specflow.targets.base import TargetError
    from specflow.targets.source import parse_source, source_files

    try:
        return list(source_files(parse_source(params.source)))
    except TargetError:
        return []  # `check` reports it


def estimate(params: TargetParams) -> Estimate:
    paths = list(files(params))
    if params.source.startswith("random:"):
        return Estimate(bytes=500_000, seconds=5.0)
    if not paths:
        return Estimate(note="size known after the download")
    size = sum(path.stat().st_size for path in paths)
    if any(path.suffix == ".gguf" for path in paths):
        size = int(size * GGUF_GROWTH)
    return Estimate(bytes=size, seconds=15.0 + size / 20e6)


def run(inputs: Inputs, params: TargetParams, context: Context) -> Metrics:
    from specflow.targets.base import TargetError
    from specflow.targets.fingerprint import fingerprint
    from specflow.targets.pretrained import without_bars
    from specflow.targets.source import parse_source
    from specflow.targets.support import check_supported

    try:
        source = parse_source(params.source)
        context.log(f"loading {params.source}")
        model, tokenizer, commit = _load(source, params, context)
        check_supported(model.config, Path(params.source))
    except TargetError as problem:
        raise StageError(f"target.source: {problem}") from problem
    except (OSError, ImportError) as problem:
        raise StageError(f"target.source {params.source!r} cannot be loaded: {problem}") from problem
    _check_chat(tokenizer, params.source)
    context.log(f"writing {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters as {params.dtype}")
    with without_bars():
        model.save_pretrained(context.output, max_shard_size="1000GB")
    tokenizer.save_pretrained(context.output)
    identity = fingerprint(context.output) | ({"source_commit": commit} if commit else {})
    (context.output / "fingerprint.json").write_text(json.dumps(identity, indent=1) + "\n", encoding="utf-8")
    config = model.config
    return {
        "model_type": config.model_type,
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "dtype": params.dtype,
        **identity,
    }


def _load(source: Source, params: TargetParams, context: Context) -> tuple[Any, Any, str | None]:
    """Model on the CPU in ``params.dtype``, tokenizer, and the commit that a hub's revision stood for."""
    import torch
    from transformers import AutoTokenizer

    from specflow.targets.gguf import load_gguf
    from specflow.targets.pretrained import load_causal_model
    from specflow.targets.tiny import make_tiny_target

    dtype = getattr(torch, params.dtype)
    if source.kind == "gguf":
        assert source.path is not None
        return *load_gguf(source.path, dtype), None
    path, commit = source.path, None
    if source.kind == "random":
        path = make_tiny_target(context.scratch / "random", source.seed)
    elif source.kind == "hub":
        from huggingface_hub import snapshot_download

        patterns = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
        path = Path(snapshot_download(source.hub_id, revision=params.revision, allow_patterns=patterns))
        commit = path.name  # a snapshot's directory is named after its commit
    model = load_causal_model(path, dtype=dtype)
    return model, AutoTokenizer.from_pretrained(path), commit


def _check_chat(tokenizer: Any, source: str) -> None:
    """The template renders, and its special tokens are single ids."""
    if not tokenizer.chat_template:
        raise StageError(
            f"target.source {source!r}: the tokenizer has no chat template, so prompts cannot be rendered; expected an "
            "instruction-tuned model, or a chat_template.jinja beside the tokenizer"
        )
    if not tokenizer.is_fast:
        raise StageError(f"target.source {source!r}: the tokenizer has no fast form (tokenizer.json)")
    for token in tokenizer.all_special_tokens:
        ids = tokenizer.encode(token, add_special_tokens=False)
        if len(ids) != 1:
            raise StageError(f"target.source {source!r}: special token {token!r} becomes {len(ids)} ids, expected one")
    tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False)
