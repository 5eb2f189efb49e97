"""A frozen decoder-only model in process: transformers' modules over the engine's attention and cache.

Legend: B requests, T rows of a pass, K captured layers, H hidden size, V vocabulary.
Logits of a row are the same for any batch and any split into passes up to fp32 rounding (about 1e-6
relative), not bit for bit: matrix kernels add in an order that depends on the number of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from specflow_kernels.packed_linear import packed_linear_supported
from torch import Tensor, nn

from specflow.targets.attention import IMPLEMENTATION, register
from specflow.targets.base import TargetError, TargetOutput
from specflow.targets.cache import Cache
from specflow.targets.device import to_host
from specflow.targets.huge_pages import use_huge_pages
from specflow.targets.last_layer import only_last_layer
from specflow.targets.linear import PackingReport
from specflow.targets.pretrained import load_causal_model
from specflow.targets.probe import choose_precision, choose_threads
from specflow.targets.speed import Replacements, replace_blocks, replace_linears, replace_norms
from specflow.targets.support import check_supported

PRECISIONS = ("fp32", "bf16", "packed", "auto")
PROBE_ROWS = 12
WORTH_HUGE_PAGES = 64 << 20
"""Bytes of weights: smaller models fit the processor's caches, where small pages cost little."""


class Target:
    """See :meth:`load`. Attributes are read-only by convention."""

    def __init__(self, model: Any, tokenizer: Any, *, path: Path, precision: str, threads: int) -> None:
        self.path, self.precision, self.threads = path, precision, threads
        self.tokenizer = tokenizer
        self.config = model.config
        self.packing_report: PackingReport | None = PackingReport() if precision == "packed" else None
        self.hidden_size: int = self.config.hidden_size
        self.num_layers: int = self.config.num_hidden_layers
        self.vocab_size: int = self.config.vocab_size
        self.end_ids = end_ids(model.generation_config, tokenizer)
        self.embedding_weight: Tensor = model.get_input_embeddings().weight.detach()
        self.head_weight: Tensor = model.get_output_embeddings().weight.detach()
        self._model = model
        self._backbone = model.base_model
        self._embedding = model.get_input_embeddings()
        self._softcap: float | None = getattr(self.config, "final_logit_softcapping", None)
        layers = getattr(self._backbone, "layers", None)
        if not isinstance(layers, nn.ModuleList) or len(layers) != self.num_layers:
            raise TargetError(f"{path}: {type(model).__name__} keeps its decoder layers in no list named 'layers'")
        self._layers = layers
        self._make_quick()

    @staticmethod
    def load(path: Path, *, precision: str = "fp32", threads: int | None = None, device: str = "cpu") -> Target:
        """Load a Hugging Face directory.

        ``precision``: ``fp32``, ``bf16``, ``packed`` (fp16 weights, fp32 arithmetic) or ``auto`` (the
        quickest here). ``threads``: of torch, for the whole process; none measures 1 against all cores.
        ``device``: of torch; ids may be given on any, results are on this one.
        Raises ``TargetError`` if the model is not supported or computes something the engine does not.
        """
        from transformers import AutoConfig, AutoTokenizer

        path = Path(path)
        if precision not in PRECISIONS:
            raise TargetError(f"precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
        if not (path / "config.json").is_file():
            raise TargetError(f"{path} holds no config.json: expected a Hugging Face model directory")
        threads = threads or choose_threads()
        torch.set_num_threads(threads)
        config = AutoConfig.from_pretrained(path)
        check_supported(config, path)
        if precision == "auto":
            precision = choose_precision(
                config.hidden_size, getattr(config, "intermediate_size", 4 * config.hidden_size)
            )
        if precision == "packed" and not (packed_linear_supported() and device == "cpu"):
            raise TargetError("precision 'packed' needs torch with fbgemm on an x86 CPU: use 'fp32' or 'bf16'")
        register()
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        model = load_causal_model(path, dtype=dtype, attn_implementation="eager")
        model.eval().requires_grad_(False).to(device)
        tokenizer = AutoTokenizer.from_pretrained(path)
        size = sum(p.numel() * p.element_size() for p in model.parameters())  # the engine may keep fewer of them
        target = Target(model, tokenizer, path=path, precision=precision, threads=threads)
        if size >= WORTH_HUGE_PAGES:
            use_huge_pages()
        return target

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """An empty cache for ``batch`` requests of up to ``capacity`` positions each."""
        return Cache(batch, capacity, device=self.embedding_weight.device)

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """``[...]`` ids to ``[..., H]``, as the first layer reads them."""
        embedded: Tensor = self._embedding(ids)
        return embedded

    @torch.no_grad()
    def head(self, hidden: Tensor) -> Tensor:
        """``[..., H]`` after the final norm to ``[..., V]`` logits."""
        logits: Tensor = self._model.get_output_embeddings()(hidden)
        return logits if self._softcap is None else torch.tanh(logits / self._softcap) * self._softcap

    @torch.no_grad()
    def final_norm(self, hidden: Tensor) -> Tensor | None:
        """``[..., H]`` as the last layer leaves it to what the head reads; none where the model names no such norm."""
        norm = getattr(self._backbone, "norm", None)
        if not isinstance(norm, nn.Module):
            return None
        normed: Tensor = norm(hidden.to(self.head_weight.dtype))
        return normed

    def forward(
        self,
        ids_BT: Tensor,
        cache: Cache,
        *,
        layer_ids: tuple[int, ...] = (),
        parents_BT: Tensor | None = None,
        rows: Sequence[int] | None = None,
    ) -> TargetOutput:
        """Run T rows per request behind the committed ones; row i sees the committed prefix and rows <= i.

        Commits nothing. Right padding needs no mask: commit fewer rows. ``layer_ids`` are 0-based, strictly
        increasing, and exclude the last layer (METHODS 0); their outputs become ``features_BTKH``.
        ``parents_BT`` int64 on the CPU: the rows are trees; row i sees the committed prefix, its ancestors and itself,
        and its position is theirs plus one. -1: it follows the prefix. Commit with ``Cache.commit_paths``.
        ``rows``: how many each request has; ids are ``[1, N]`` then, those of all requests one after another, and so is
        what comes back. No other row is computed.
        """
        if rows is None and ids_BT.shape[0] != cache.batch:
            raise ValueError(f"ids of {ids_BT.shape[0]} requests, a cache of {cache.batch}")
        if rows is not None and ids_BT.shape != (1, sum(rows)):
            raise ValueError(f"ids of shape {tuple(ids_BT.shape)} for rows {list(rows)}: expected (1, {sum(rows)})")
        captured: dict[int, Tensor] = {}
        handles = [self._layers[k].register_forward_hook(partial(_keep, captured, k)) for k in self._checked(layer_ids)]
        hidden = self._pass(ids_BT, cache, handles, parents_BT, rows)
        # Copies made outside inference mode are ordinary tensors, which training may use.
        features = torch.stack([captured[k] for k in layer_ids], dim=2) if layer_ids else None
        return TargetOutput(last_hidden_BTH=hidden.clone(), features_BTKH=features)

    def residual_states(self, ids_T: Tensor, layers: Collection[int]) -> tuple[dict[int, Tensor], Tensor]:
        """Of one document: the residual stream after ``layers``, each ``[T, H]``, and ``last_hidden``.

        Layer -1 is what the first layer reads, ``num_layers - 1`` what the final norm reads. For checks: engines
        cannot capture these two. Results are in host memory.
        """
        captured: dict[int, Tensor] = {}
        handles = [self._layers[k].register_forward_hook(partial(_keep, captured, k)) for k in layers if k >= 0]
        if -1 in layers:
            keep = partial(_keep_input, captured)
            handles.append(self._layers[0].register_forward_pre_hook(keep, with_kwargs=True))
        hidden = self._pass(ids_T[None], self.new_cache(1, ids_T.numel()), handles)
        last_TH, *states = to_host(hidden[0], *(value[0] for value in captured.values()))
        return dict(zip(captured, states, strict=True)), last_TH

    def _pass(
        self,
        ids_BT: Tensor,
        cache: Cache,
        handles: list[Any],
        parents_BT: Tensor | None = None,
        rows: Sequence[int] | None = None,
    ) -> Tensor:
        """The last hidden states of a pass; ``handles`` of hooks are removed after it."""
        try:
            with torch.inference_mode():
                current = cache.begin_pass(rows or ids_BT.shape[1], parents_BT)
                hidden: Tensor = self._backbone(
                    input_ids=ids_BT.to(self.embedding_weight.device),
                    position_ids=current.position_ids,
                    cache=cache,
                    use_cache=True,
                    specflow_pass=current,
                ).last_hidden_state
        finally:
            for handle in handles:
                handle.remove()
        return hidden

    def finish(self, ids: Sequence[int], hidden_TH: Tensor) -> Tensor:
        """The last layer and the final norm over the rows of one document.

        ``hidden_TH``: output of the last layer but one; returns ``last_hidden`` ``[T, H]``. Only for models whose last
        layer reads nothing of the others but their output.
        """
        with only_last_layer(self._layers, hidden_TH.to(self.embedding_weight).unsqueeze(0)):
            return self.forward(torch.tensor([list(ids)]), self.new_cache(1, len(ids))).last_hidden_BTH[0]

    def _checked(self, layer_ids: tuple[int, ...]) -> tuple[int, ...]:
        if list(layer_ids) != sorted(set(layer_ids)) or any(not 0 <= k < self.num_layers - 1 for k in layer_ids):
            raise TargetError(
                f"layer ids {layer_ids}: expected strictly increasing ids from 0 to {self.num_layers - 2} "
                f"(the model has {self.num_layers} layers; the last one's output cannot be captured)"
            )
        return layer_ids

    def _make_quick(self) -> None:
        """Switch to the engine's attention, then to quicker modules; each step is compared with transformers."""
        ids = (torch.arange(PROBE_ROWS) * 7919 % self.vocab_size).unsqueeze(0).to(self.embedding_weight.device)
        with torch.inference_mode():
            expected = self._model(input_ids=ids, use_cache=False).logits.float()
        self._model.set_attn_implementation(IMPLEMENTATION)
        try:
            error = self._probe_error(ids, expected)
        except RuntimeError as problem:
            raise TargetError(
                f"{self.path}: {type(self._model).__name__} cannot run in the engine: {problem}"
            ) from problem
        tolerance = 0.1 if self.precision == "bf16" else 1e-4
        if not error <= tolerance:
            raise TargetError(
                f"{self.path}: {type(self._model).__name__} gives other logits in the engine (relative error "
                f"{error:.2g}): its attention or head does something the engine does not support"
            )
        replaced = Replacements()
        replace_norms(self._model, replaced)
        replace_blocks(self._model, replaced, self.packing_report)
        one_pass = partial(self.forward, ids, self.new_cache(1, PROBE_ROWS))
        replace_linears(self._model, replaced, one_pass, self.packing_report)
        if not self._probe_error(ids, expected) <= max(tolerance, 2e-3 if self.packing_report else 0.0):
            replaced.undo()
            if self.packing_report:
                raise TargetError(f"{self.path}: packed weights change the logits: use precision 'fp32' or 'bf16'")

    def _probe_error(self, ids: Tensor, expected: Tensor) -> float:
        """Largest relative difference of logits over two passes of the engine."""
        cache = self.new_cache(1, PROBE_ROWS)
        parts = []
        for part in (ids[:, : PROBE_ROWS - 5], ids[:, PROBE_ROWS - 5 :]):
            parts.append(self.head(self.forward(part, cache).last_hidden_BTH))
            cache.commit(part.shape[1])
        return float((torch.cat(parts, dim=1).float() - expected).abs().max() / expected.abs().max())


def _keep(captured: dict[int, Tensor], layer: int, module: nn.Module, inputs: Any, output: Any) -> None:
    captured[layer] = output[0] if isinstance(output, tuple) else output


def _keep_input(captured: dict[int, Tensor], module: nn.Module, inputs: Any, named: Any) -> None:
    captured[-1] = inputs[0] if inputs else named["hidden_states"]


def end_ids(generation_config: Any, tokenizer: Any) -> frozenset[int]:
    """End tokens of the generation config and of the tokenizer."""
    ids: set[int] = set()
    for value in (getattr(generation_config, "eos_token_id", None), tokenizer.eos_token_id):
        ids.update(value if isinstance(value, (list, tuple)) else () if value is None else (value,))
    return frozenset(int(i) for i in ids)


def end_ids_of(path: Path) -> frozenset[int]:
    """The same for a directory, without its weights."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    if (path / "generation_config.json").exists():
        generation = GenerationConfig.from_pretrained(path)
    else:
        generation = GenerationConfig.from_model_config(AutoConfig.from_pretrained(path))
    return end_ids(generation, AutoTokenizer.from_pretrained(path))
