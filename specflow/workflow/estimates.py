"""Sizes that follow from several sections of the configuration together, before anything has run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from pydantic import BaseModel

from specflow.config.capture import CaptureParams
from specflow.config.drafter import DrafterParams
from specflow.config.inputs import PromptSource
from specflow.config.root import Config
from specflow.config.target_facts import target_facts
from specflow.stages.contract import Estimate, StageModule
from specflow.workflow.graph import Node
from specflow.workflow.retraining import ResolvedConfig

WEIGHT_AND_GRADIENT, ADAMW, MUON = 2, 2, 1
"""fp32 numbers per weight that training keeps."""
BYTES_PER_PROMPT_TOKEN = 3
"""Of a line of a prompts file, JSON included; prose has 4 to 5 bytes a token."""
TEMPLATE_TOKENS = 64
"""Room for what the chat template adds to a prompt."""


def stated_estimate(node: Node, module: StageModule, config: BaseModel) -> Estimate:
    """The stage's own estimate; for ``capture``, which knows neither prompts nor target, with a size from both."""
    stated = module.estimate(node.params)
    if stated.bytes is None and isinstance(node.params, CaptureParams) and isinstance(config, Config):
        if isinstance(config, ResolvedConfig) and node.item in config.slices:
            config = config.model_copy(update={"regenerate": config.slices[node.item]})
        return feature_estimate(node.params, config) or stated
    if isinstance(node.params, DrafterParams) and isinstance(config, Config):
        return replace(stated, note="; ".join(filter(None, (stated.note, training_memory(node.params, config)))))
    return stated


def training_memory(params: DrafterParams, config: Config) -> str:
    """What weights, gradients and the optimiser's state will need; empty where sizes are not known."""
    hidden = target_facts(config.target.source).hidden_size
    features = len(params.layers_of(config.capture.layer_ids))
    weights = params.about_parameters(hidden_size=hidden, features=features) if hidden else None
    if weights is None:
        return ""
    numbers = WEIGHT_AND_GRADIENT + (MUON if params.train.optimizer == "muon" else ADAMW)
    numbers += params.train.ema is not None
    return f"about {weights / 1e6:.1f} M weights, {4 * numbers * weights / 2**30:.1f} GiB with gradients and optimiser"


def feature_estimate(params: CaptureParams, config: Config) -> Estimate | None:
    """Upper bound of the features' size; none where the target's hidden size or the prompts are not known."""
    hidden = target_facts(config.target.source).hidden_size
    if hidden is None:
        return None
    answer = config.regenerate.max_new_tokens
    sources = (*config.regenerate.train, *config.regenerate.heldout)
    files = [source.path for source in sources if source.path is not None and _of_lines(source.path)]
    if len(files) < len(sources):
        return None
    try:
        prompts = [n for file, source in zip(files, sources, strict=True) for n in _tokens(file, source)]
    except OSError:
        return None
    tokens = sum(min(config.tokenize.max_length, prompt + answer) for prompt in prompts)
    each = params.bytes_per_token(hidden)
    note = f"{each} bytes per token in {params.storage}, at most about {tokens} tokens of {len(prompts)} documents"
    if params.store_url is None:
        return Estimate(bytes=tokens * each, note=note)
    # Two shards at a time pass this disk.
    passing = 2 * min(tokens, params.shard_tokens) * each
    note += f": {tokens * each / 1e9:.3g} GB at {params.store_url}, whose free room is not known"
    return Estimate(bytes=passing, note=note)


def _of_lines(path: Path) -> bool:
    """Whether a prompt is a line."""
    return not path.is_dir() and path.suffix not in (".parquet", ".json")


def _tokens(path: Path, source: PromptSource) -> Iterable[int]:
    """At most about how many tokens each prompt of a file has."""
    with path.open("rb") as file:
        rows = (line for line in file if line.strip())
        yield from (len(line) // BYTES_PER_PROMPT_TOKEN + TEMPLATE_TOKENS for line in islice(rows, source.limit))
