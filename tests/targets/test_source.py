"""Forms of ``target.source`` and what ``check`` says about bad ones; the stage on a random target."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specflow.config.target import TargetParams
from specflow.stages import target as stage
from specflow.stages.contract import Inputs, Progress, StageError
from specflow.targets.target import Target
from specflow.targets.tiny import make_tiny_target


class FakeContext:
    item: str | None = None

    def __init__(self, path: Path) -> None:
        self.output, self.scratch = path / "output", path / "scratch"
        self.output.mkdir()
        self.scratch.mkdir()

    def log(self, message: str) -> None:
        pass

    @contextmanager
    def progress(self, description: str, *, total: float, unit: str = "rows") -> Iterator[Progress]:
        raise AssertionError("not used")
        yield


def messages(source: str) -> list[str]:
    return [problem.found for problem in stage.check(TargetParams(source=source))]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("random:x", "whole number"),
        ("package:no_such_module/x.gguf", "not installed"),
        ("package:json/x.gguf", "has no file 'x.gguf'"),
        ("./missing", "no such directory or file"),
        ("a/b/c", "no such directory or file"),
    ],
)
def test_bad_sources(source: str, text: str) -> None:
    (found,) = messages(source)
    assert text in found


def test_good_sources(tmp_path: Path) -> None:
    tiny = make_tiny_target(tmp_path / "tiny", 0)
    assert messages("random:3") == messages("owner/name") == messages(str(tiny)) == []
    names = {path.name for path in stage.files(TargetParams(source=str(tiny)))}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
    assert list(stage.files(TargetParams(source="random:3"))) == []


def test_directory_without_template_or_decoder(tmp_path: Path) -> None:
    tiny = make_tiny_target(tmp_path / "tiny", 0)
    (tiny / "chat_template.jinja").unlink()
    (found,) = messages(str(tiny))
    assert "without a chat template" in found
    with pytest.raises(StageError, match="no chat template"):
        stage.run(Inputs(()), TargetParams(source=str(tiny)), FakeContext(tmp_path))
    config = json.loads((tiny / "config.json").read_text())
    (tiny / "config.json").write_text(json.dumps(config | {"architectures": ["T5ForConditionalGeneration"]}))
    assert any("T5ForConditionalGeneration" in found for found in messages(str(tiny)))


def test_gguf_without_template(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + b"\0" * 64)
    assert "without a chat template" in messages(str(file))[0]
    file.write_bytes(b"GGUF...tokenizer.chat_template...")
    assert messages(str(file)) == []
    file.write_bytes(b"PK")
    assert "not a GGUF file" in messages(str(file))[0]


def test_stage_writes_the_same_target_each_time(tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        context = FakeContext(tmp_path / name)
        metrics = stage.run(Inputs(()), TargetParams(source="random:5"), context)
        contents.append({path.name: path.read_bytes() for path in sorted(context.output.iterdir())})
    assert contents[0] == contents[1]
    identity = json.loads(contents[0]["fingerprint.json"])
    assert {k: metrics[k] for k in identity} == identity
    assert set(identity) == {"weights_sha256", "config_sha256", "tokenizer_sha256", "template_sha256"}
    target = Target.load(tmp_path / "a" / "output", threads=1)
    assert (target.vocab_size, target.num_layers, target.config.dtype) == (300, 4, target.embedding_weight.dtype)
    assert metrics["dtype"] == json.loads(contents[0]["config.json"])["dtype"] == "bfloat16"
