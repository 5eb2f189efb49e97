"""The ``README.md`` of an export: what it is, how it is served, what was measured, and where that holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

CARD = "README.md"
METHODS = {"eagle": "EAGLE", "eagle3": "EAGLE-3", "dflash": "DFlash", "dflash2": "DFlash 2", "dspark": "DSpark"}
FILES = {
    "config.json, model.safetensors": "what the engine loads",
    "manifest.json": "what was trained and exported, with a hash of every tensor; `specflow lint` reads it",
    "feature_contract.json": "the hidden states that it was trained on, and the target they are of",
}


def model_card(
    name: str,
    manifest: Mapping[str, Any],
    launch: Mapping[str, Any],
    *,
    measured: Mapping[str, Any] | None,
    checks: int,
) -> str:
    """Markdown. ``measured``: the result record of a benchmark; none: the card says that nothing was measured."""
    parts = [
        _head(manifest),
        f"# {name}\n",
        _what(manifest),
        "## Serving\n",
        _serving(manifest, launch),
        "## Measured\n",
        "\n".join(_measured(measured)) if measured else "Nothing yet: the export was made without a benchmark.\n",
        "## Files\n",
        "\n".join(_files(manifest)) + "\n",
        f"Checked by {checks} rules of `specflow lint` for {launch['engine']}; none found anything.\n",
    ]
    return "\n".join(parts)


def _head(manifest: Mapping[str, Any]) -> str:
    tags = "".join(f"- {tag}\n" for tag in ("speculative-decoding", manifest["method"], "sglang"))
    return f"---\nlibrary_name: sglang\ntags:\n{tags}---\n"


def _what(manifest: Mapping[str, Any]) -> str:
    method = str(manifest["method"])
    fingerprint = manifest.get("target_fingerprint") or {}
    hashes = ", ".join(f"{k.removesuffix('_sha256')} {str(v)[:12]}" for k, v in sorted(fingerprint.items()) if v)
    lines = [
        f"A {METHODS.get(method, method)} drafter: it proposes {manifest['num_proposals']} tokens a round from the "
        f"outputs of layers {', '.join(map(str, manifest['layer_ids']))} of its target (0-based). The target decides "
        "every token, so its answers are the target's own.\n",
        f"It fits one target only, with these files (sha256): {hashes or 'not stated'}.\n",
    ]
    if unknown := ((manifest.get("lineage") or {}).get("imported") or {}).get("unknown"):
        lines.append(f"It was not trained here. Not known: {'; '.join(unknown)}.\n")
    if factor := manifest.get("stretched"):
        lines.append(
            f"Its positions are stretched by YaRN; the target must be served with the same factor, {factor:g}.\n"
        )
    return "\n".join(lines)


def _serving(manifest: Mapping[str, Any], launch: Mapping[str, Any]) -> str:
    commands = [launch["command"], *launch.get("scheduled", {}).values()]
    lines = [f"{launch['engine']}; {launch['paths']}.\n", *(f"```\n{command}\n```\n" for command in commands)]
    if conditions := ((manifest.get("schedule") or {}).get("costs") or {}).get("conditions"):
        engine, hardware = conditions.get("engine") or {}, conditions.get("hardware") or {}
        lines.append(
            f"The costs in `sps.json` were measured with the {engine.get('name')} engine on {hardware.get('cpu')}; "
            "they hold there only.\n"
        )
    return "\n".join(lines)


def _measured(result: Mapping[str, Any]) -> Iterator[str]:
    """A row per kind of prompts, and the circumstances."""
    yield "| prompts | tau | plain tokens/s | with the drafter | speed-up (95 %) |"
    yield "|---|---|---|---|---|"
    for name, group in (("all", result["total"]), *sorted((result.get("kinds") or {}).items())):
        yield f"| {name} | {_figures(group)} |"
    engine, hardware, dataset = (result.get(key) or {} for key in ("engine", "hardware", "dataset"))
    told = [
        f"engine {engine.get('name')} {engine.get('version', '')} in {engine.get('precision')}",
        f"{hardware.get('cpu') or hardware.get('device')}, {hardware.get('threads', '?')} threads",
        f"{(result.get('sampling') or {}).get('name')} sampling, {result.get('concurrency')} request at a time",
        f"{dataset.get('prompts')} prompts, up to {dataset.get('max_new_tokens')} tokens "
        f"(sha256 {str(dataset.get('sha256'))[:12]})",
        f"baseline: {result.get('baseline')}",
        f"tau: {(result.get('conventions') or {}).get('tau')}",
    ]
    yield ""
    yield from (f"- {line}" for line in told)
    yield ""


def _figures(group: Mapping[str, Any]) -> str:
    def number(value: Any, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    speedup = group.get("speedup") or {}
    interval = f" ({number(speedup.get('low'), 2)} to {number(speedup.get('high'), 2)})" if speedup else ""
    return " | ".join(
        [
            number(group.get("tau"), 2),
            number((group.get("plain") or {}).get("tokens_per_second"), 1),
            number((group.get("speculative") or {}).get("tokens_per_second"), 1),
            number(speedup.get("ratio"), 2) + interval,
        ]
    )


def _files(manifest: Mapping[str, Any]) -> Iterator[str]:
    schedule = manifest.get("schedule") or {}
    further = {
        "sts.json": ("temperatures", "temperatures of its confidence"),
        "sps.json": ("costs", "what target passes cost"),
    }
    listed = {**FILES, **{file: text for file, (key, text) in further.items() if key in schedule}}
    yield from (f"- `{file}`: {text}" for file, text in listed.items())
