"""Lint of a draft directory: everything a serving engine would accept silently and serve badly.

SGLang ignores unknown tensors and does not check that every parameter was loaded, so a wrong export answers with
HTTP 200 and accepts nothing. The exporter therefore owns the check: exact names and shapes, an allow list of config
keys, ids and lengths against the target, both forms of the rotary base read back from the written file, and each
tensor compared with the trained one after the cast. All problems are reported together. The rules of a method are in
its layout; those that methods share are in ``lint_rules``. A rule that needs what is not there (our manifest, the
target) says what it can without, and the report names what it could not judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from specflow.features.contract import FINGERPRINT_FIELDS
from specflow.serving import schedule_files
from specflow.serving.consequences import consequence
from specflow.serving.draft import Draft, Finding, NotKnown, Rule, Unknown, tensor_hash
from specflow.serving.layouts.registry import ENGINES, get_layout, layout_names, method_of

HASHES = "tensors"
"""Key of an export's manifest: sha256 of every tensor as it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    engine: str
    method: str
    checks: tuple[str, ...]
    findings: tuple[Finding, ...]
    tensors: Mapping[str, Mapping[str, Any]]
    not_judged: Mapping[str, str] = field(default_factory=dict)
    """Rules that could not be applied in full, with what they need."""

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "method": self.method,
            "passed": not self.findings,
            "checks": list(self.checks),
            "not_judged": dict(self.not_judged),
            "findings": [{**asdict(f), "consequence": consequence(f.check)} for f in self.findings],
            "tensors": dict(self.tensors),
        }


def lint(draft: Draft, *, engine: str) -> Report:
    """Run every check of the method for ``engine``; raises ``ValueError`` for a pair without rules.

    The method is the manifest's; without one, that of the architecture in ``config.json``.
    """
    method = str(draft.manifest.get("method")) if draft.ours else method_of(draft.config)
    if engine not in ENGINES or method not in layout_names():
        raise ValueError(
            f"no lint rules for method {method!r} and engine {engine!r}; known: {', '.join(layout_names())} "
            f"for {', '.join(ENGINES)}"
        )
    layout = get_layout(method)
    rules: dict[str, Rule] = {**layout.RULES, **COMMON}
    findings: list[Finding] = []
    not_judged: dict[str, str] = {}
    try:
        draft = of_engine(draft)
    except (KeyError, TypeError, ValueError) as error:
        findings.append(Finding(check="config-keys", where="config.json", found=f"{error!r}", expected="the key"))
    for name, rule in rules.items():
        try:
            for finding in rule(draft):
                findings.append(finding)  # noqa: PERF402 - what was found before an error counts
        except NotKnown as error:
            not_judged[name] = error.what
        except (KeyError, TypeError, ValueError) as error:  # a broken file must not hide the other problems
            findings.append(Finding(check=name, where="config.json", found=f"{error!r}", expected="a readable value"))
    tensors = {
        name: {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch."), "sha256": tensor_hash(t)}
        for name, t in sorted(draft.tensors.items())
    }
    return Report(
        engine=engine,
        method=method,
        checks=tuple(rules),
        findings=tuple(findings),
        tensors=tensors,
        not_judged=not_judged,
    )


def of_engine(draft: Draft) -> Draft:
    """The draft as an engine reads it; ours say everything already. Raises what a layout's ``as_read`` does."""
    if draft.ours:
        return draft
    known = {} if isinstance(draft.target, Unknown) else {"num_target_layers": draft.target["num_hidden_layers"]}
    config, tensors = get_layout(method_of(draft.config)).as_read({**known, **draft.config}, draft.tensors)
    return replace(draft, config=config, tensors=tensors)


def as_exported(draft: Draft) -> Iterator[Finding]:
    """Every tensor has the hash that the export's manifest states; a manifest of an older form states none."""
    stated = draft.manifest.get(HASHES)
    if stated is None:
        raise NotKnown("hashes in the manifest")
    for name in sorted(stated.keys() & draft.tensors.keys()):
        found = tensor_hash(draft.tensors[name])
        if found != stated[name]:
            yield Finding(
                check="as-exported", where=name, found=f"sha256 {found[:12]}",
                expected=f"sha256 {stated[name][:12]}, as exported",
            )  # fmt: skip


def same_target(draft: Draft) -> Iterator[Finding]:
    """The target is the one that the drafter was trained for."""
    stated = draft.manifest["target_fingerprint"]
    for name in FINGERPRINT_FIELDS:
        found = draft.fingerprint.get(name)
        if found != stated.get(name):
            yield Finding(
                check="target", where=name.removesuffix("_sha256"), found=f"sha256 {str(found)[:12]}",
                expected=f"sha256 {str(stated.get(name))[:12]}, of the target that it was trained for",
            )  # fmt: skip


COMMON: dict[str, Rule] = {
    "as-exported": as_exported,
    "target": same_target,
    "temperatures": schedule_files.temperatures,
    "costs": schedule_files.costs,
}
"""Rules of every method."""
