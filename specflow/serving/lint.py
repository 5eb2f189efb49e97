"""Lint of an exported draft: everything a serving engine would accept silently and serve badly.

SGLang ignores unknown tensors and does not check that every parameter was loaded, so a wrong export answers with
HTTP 200 and accepts nothing. The exporter therefore owns the check: exact names and shapes, an allow list of config
keys, ids and lengths against the target, both forms of the rotary base read back from the written file, and each
tensor compared with the trained one after the cast. All problems are reported together. The rules of a method are in
its layout; those that methods share are in ``lint_rules``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specflow.serving.draft import Draft, Finding, tensor_hash
from specflow.serving.layouts.registry import ENGINES, get_layout, layout_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    engine: str
    method: str
    checks: tuple[str, ...]
    findings: tuple[Finding, ...]
    tensors: Mapping[str, Mapping[str, Any]]

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "method": self.method,
            "passed": not self.findings,
            "checks": list(self.checks),
            "findings": [asdict(f) for f in self.findings],
            "tensors": dict(self.tensors),
        }


def lint(draft: Draft, *, engine: str) -> Report:
    """Run every check of the method for ``engine``; raises ``ValueError`` for a pair without rules."""
    method = str(draft.manifest.get("method"))
    if engine not in ENGINES or method not in layout_names():
        raise ValueError(
            f"no lint rules for method {method!r} and engine {engine!r}; known: {', '.join(layout_names())} "
            f"for {', '.join(ENGINES)}"
        )
    rules = get_layout(method).RULES
    findings: list[Finding] = []
    for name, rule in rules.items():
        try:
            findings += list(rule(draft))
        except (KeyError, TypeError, ValueError) as error:  # a broken file must not hide the other problems
            findings.append(Finding(check=name, where="config.json", found=f"{error!r}", expected="a readable value"))
    tensors = {
        name: {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch."), "sha256": tensor_hash(t)}
        for name, t in sorted(draft.tensors.items())
    }
    return Report(engine=engine, method=method, checks=tuple(rules), findings=tuple(findings), tensors=tensors)
