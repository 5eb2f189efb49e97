"""Every operator of this package that has a Triton kernel."""

from __future__ import annotations

from importlib import import_module

from specflow_kernels.operator import Operator

WHERE = {
    "anchored_block_attention": ("anchored_block_attention", "OPERATOR"),
    "linear_distillation_loss": ("linear_distillation_loss", "OPERATOR"),
    "ttt_attention": ("ttt_attention", "OPERATOR"),
    "accept_greedy": ("accept_greedy", "OPERATOR"),
    "verify_chain": ("verify_chain", "OPERATOR"),
    "verify_tree": ("verify_tree", "OPERATOR"),
    "build_tree": ("build_tree", "OPERATOR"),
    "allocate_budget": ("allocate_budget", "OPERATOR"),
    "compact_rows": ("compact_rows", "OPERATOR"),
    "scatter_rows": ("compact_rows", "SCATTER"),
    "commit_path": ("commit_path", "OPERATOR"),
    "grouped_dynamic_conv": ("grouped_dynamic_conv", "OPERATOR"),
    "markov_walk": ("markov_walk", "OPERATOR"),
    "selector_lattice": ("selector", "LATTICE"),
    "selector_walk": ("selector", "WALK"),
    "quantize_features": ("quantize_features", "QUANTIZE"),
    "dequantize_features": ("quantize_features", "DEQUANTIZE"),
}
"""Package and name of each operator's description."""
NAMES = tuple(WHERE)


def load(name: str) -> Operator:
    """Raises ``KeyError`` for a name that is not in ``NAMES``."""
    package, attribute = WHERE[name]
    operator: Operator = getattr(import_module(f"specflow_kernels.{package}.operator"), attribute)
    return operator


def load_all() -> list[Operator]:
    return [load(name) for name in NAMES]
