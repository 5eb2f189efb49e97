"""A GGUF file is parsed once, and gives the same target as transformers alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.targets.gguf import load_gguf
from specflow.targets.tiny import make_tiny_target

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``(file, model)``: the tiny target as GGUF with products of 8 bits, and what it was written from."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = tmp_path_factory.mktemp("gguf")
    tiny = make_tiny_target(directory / "tiny", 0)
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    write(directory / "tiny.gguf", model, AutoTokenizer.from_pretrained(tiny))
    return directory / "tiny.gguf", model


def write(path: Path, model: Any, tokenizer: Any) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    merges = tokenizer.backend_tokenizer.model.__getstate__()
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    special = set(tokenizer.all_special_tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token in special else normal for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in json.loads(merges)["merges"]])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, value in model.state_dict().items():
        stem, _, suffix = name.rpartition(".")
        kind = gguf.GGMLQuantizationType.Q8_0 if value.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(f"{names.get_name(stem)}.{suffix}", gguf.quantize(value.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def saved(model: Any, tokenizer: Any, path: Path) -> dict[str, bytes]:
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_one_parse_gives_the_bytes_of_many(weights: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    file, original = weights
    parsed: list[str] = []

    class CountedReader(gguf.GGUFReader):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            parsed.append("file")
            super().__init__(*arguments, **options)

    def counted_names(*arguments: Any) -> Any:
        parsed.append("names")
        return gguf.tensor_mapping.get_tensor_name_map(*arguments)

    monkeypatch.setattr(gguf, "GGUFReader", CountedReader)
    monkeypatch.setattr(gguf, "get_tensor_name_map", counted_names)
    found = saved(*load_gguf(file, torch.float32), tmp_path / "once")
    assert sorted(parsed) == ["file", "names"]
    assert gguf.GGUFReader is CountedReader
    assert gguf.get_tensor_name_map is counted_names

    parsed.clear()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    assert parsed.count("file") > 1
    assert parsed.count("names") > 1
    for config in (model.config, model.generation_config):
        if hasattr(config, "quantization_config"):
            del config.quantization_config
    assert found == saved(model, tokenizer, tmp_path / "many")

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "once").state_dict()
    for name, value in original.state_dict().items():
        if value.ndim == 1:
            assert torch.equal(loaded[name], value), name
        else:  # 127 steps to the largest of 32 values
            assert (loaded[name].abs().max() - value.abs().max()).abs() <= value.abs().max() / 127, name
    embedding = original.state_dict()["model.embed_tokens.weight"]
    assert (loaded["model.embed_tokens.weight"] - embedding).abs().max() <= embedding.abs().max() / 254 + 1e-3
