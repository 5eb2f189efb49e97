"""``drafters``: one entry per drafter; the method decides which fields exist (see ``specflow.config.methods``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from specflow.config.base import NOT_IN_KEY, Section, increasing
from specflow.config.parameter_groups import GroupParams


class TrainParams(Section):
    """Train the drafters."""

    steps: int = Field(default=1000, ge=1, description="Optimiser steps.")
    documents_per_step: int = Field(default=4, ge=1, description="Documents in one step.")
    anchors_per_document: int = Field(default=16, ge=1, description="Anchors sampled from one document per step.")
    documents_per_pass: int | None = Field(
        default=None, ge=1, description="Documents in one forward pass, to bound memory; none: those of a step."
    )
    learning_rate: float = Field(default=6e-4, gt=0, description="Peak learning rate.")
    schedule: Literal["cosine", "wsd", "constant"] = Field(
        default="cosine",
        description="After the warm-up: half a cosine; or stable, then a decay at the end (wsd); or stable.",
    )
    warmup: float = Field(default=0.04, ge=0, le=1, description="Share of the steps with linear warm-up.")
    warmup_steps: int | None = Field(
        default=None, ge=0, description="Steps with linear warm-up, whatever the number of steps; none: `warmup`."
    )
    decay: float = Field(default=0.2, ge=0, le=1, description="Share of the steps in which `wsd` decays.")
    final_rate: float = Field(
        default=0.0, ge=0, le=1, description="Where `cosine` and `wsd` end, as a share of the peak learning rate."
    )
    optimizer: Literal["adamw", "muon"] = Field(
        default="adamw",
        description="`muon`: matrices of hidden layers by Muon; embeddings, heads, norms and biases by AdamW.",
    )
    groups: tuple[GroupParams, ...] = Field(default=(), description="Parameters that are trained otherwise.")
    weight_decay: float = Field(default=0.0, ge=0, description="Weight decay of matrices.")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.95), description="AdamW betas."
    )
    epsilon: float = Field(default=1e-8, gt=0, description="AdamW epsilon.")
    muon_momentum: float = Field(default=0.95, ge=0, lt=1, description="Momentum of Muon (Nesterov).")
    muon_scale: Literal["match_rms_adamw", "original"] = Field(
        default="match_rms_adamw",
        description="How Muon's step grows with a matrix: as large as AdamW's, so that its learning rate fits; or "
        "as its author published it.",
    )
    clip_norm: float = Field(default=1.0, gt=0, description="Global gradient norm limit.")
    ema: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Decay of a moving average of the weights, which is then evaluated and kept; none: the weights.",
    )
    seed: int = Field(default=0, description="Seed of initialisation and of the order of the data.")
    initialise: Literal["target", "random"] = Field(
        default="target", description="`target`: draft layers start as the target's last layers."
    )
    init_from: str | None = Field(
        default=None,
        description="A drafter to start from: its directory, the beginning of its artifact's key, or `promoted` (the "
        "one of gate.service; without one as none). Tensors are taken by name; what it lacks starts as `initialise` "
        "says.",
    )
    init_take: Literal["weights", "state", "whole"] = Field(
        default="weights",
        description="`state`: training goes on where that drafter's stopped, optimiser and step included, up to "
        "`steps`; it needs a drafter made with `keep_state`. `whole`: that drafter as it is, nothing is trained.",
    )
    keep_state: bool = Field(
        default=False, description="Keep the training state in the artifact, about three times the drafter's size."
    )
    soft_targets: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of each row's target that is the target model's whole distribution instead of its token.",
    )
    softmax_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Restrict the training softmax to the tokens that occur in the training answers plus the most "
        "frequent others up to this number; none: the whole vocabulary.",
    )
    evaluate_every: int = Field(default=200, ge=1, description="Steps between held-out walks.")
    evaluate_prompts: int = Field(default=16, ge=1, description="Held-out documents walked at each evaluation.")
    checkpoint_every: int = Field(
        default=50, ge=1, description="Steps between checkpoints.", json_schema_extra=NOT_IN_KEY
    )
    log_every: int = Field(default=10, ge=1, description="Steps between lines of the curve.")
    loggers: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] = Field(
        default=(),
        description="Where the curve goes besides `metrics.jsonl`; each needs its package.",
        json_schema_extra=NOT_IN_KEY,
    )
    log_dir: Path | None = Field(
        default=None,
        description="Directory of the loggers' files; none: `logs` in the drafter's artifact.",
        json_schema_extra=NOT_IN_KEY,
    )
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads; none: chosen by a probe.", json_schema_extra=NOT_IN_KEY
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto",
        description="Of products: bf16 under autocast, with fp32 weights, norms and sums; `auto`: bf16 where the "
        "machine multiplies it natively.",
        json_schema_extra=NOT_IN_KEY,
    )
    compile: bool = Field(
        default=False,
        description="Compile the network with torch.compile; sums are then not equal bit for bit.",
        json_schema_extra=NOT_IN_KEY,
    )
    ranks: int = Field(
        default=1,
        ge=1,
        description="Processes that share the documents of every step; the result is equal up to rounding.",
        json_schema_extra=NOT_IN_KEY,
    )
    parallel: Literal["ddp", "fsdp"] = Field(
        default="ddp",
        description="With several ranks: every rank holds all weights (ddp), or a part of them and of the optimiser's "
        "state (fsdp).",
        json_schema_extra=NOT_IN_KEY,
    )
    launcher: Literal["here", "torchrun"] = Field(
        default="here",
        description="`torchrun`: write the job and stop; torchrun trains on several machines, and the next run "
        "finishes.",
        json_schema_extra=NOT_IN_KEY,
    )
    skip_limit: int = Field(
        default=10,
        ge=1,
        description="Steps in a row with a loss or gradient that is not finite, after which training ends.",
    )
    divergence: float = Field(
        default=3.0,
        gt=1,
        description="Warn when the running mean of the loss exceeds its lowest value by this factor.",
        json_schema_extra=NOT_IN_KEY,
    )


class DrafterParams(Section):
    """What every method has; its own parameters are in ``specflow/drafters/<name>/params.py``."""

    proposes_trees: ClassVar[bool] = False
    """Whether the method's proposers expand trees (``specflow.drafters.base.Expands``)."""

    serves_trees: ClassVar[bool] = False
    """Whether a serving engine drafts trees with it, too."""

    method: str = Field(description="What kind of drafter this is.")
    layer_ids: Annotated[tuple[int, ...] | None, AfterValidator(increasing)] = Field(
        default=None, description="Target layers read by the drafter; none: all that were captured."
    )
    train: TrainParams = Field(default=TrainParams(), description="How it is trained.")

    def layers_of(self, captured: tuple[int, ...]) -> tuple[int, ...]:
        """The layers that it reads, where ``captured`` are there."""
        return self.layer_ids or captured

    def about_parameters(self, *, hidden_size: int, features: int) -> int | None:
        """Roughly how many weights are trained for a target of this size; none: not known before it is here."""
        return None

    def gives_confidence(self) -> bool | None:
        """Whether its proposals come with a confidence, which `calibrate` needs; none: not known before it is here."""
        return None
