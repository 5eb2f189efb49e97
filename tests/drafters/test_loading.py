"""A drafter survives the disk; mask tokens are chosen and refused by rule."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specflow.drafters.loading import Manifest, load_drafter, load_network, read_manifest, save_drafter
from specflow.drafters.mask_token import NoMaskToken, choose_mask_token
from specflow.drafters.registry import get_method, method_names
from specflow.features.contract import FeatureContract
from tests.drafters.helpers import committed, document, network, tables

torch.set_num_threads(1)
MANIFEST = Manifest(
    method="dflash",
    block_size=5,
    num_proposals=4,
    layer_ids=(0, 2, 3),
    mask_token="<mask>",
    mask_token_id=96,
    feature_contract=FeatureContract(
        weights_sha256="w",
        config_sha256="c",
        tokenizer_sha256="t",
        template_sha256="m",
        layer_ids=(0, 2, 3),
        hidden_size=32,
        precision="fp32",
    ),
    target_fingerprint={"weights_sha256": "def"},
    lineage={"target": "t"},
)


class Host:
    precision = "fp32"

    def embed(self, ids: Tensor) -> Tensor:
        return tables()[0][ids]

    def head(self, hidden: Tensor) -> Tensor:
        return hidden @ tables()[1].T


def test_round_trip(tmp_path: Path) -> None:
    net = network(4)
    save_drafter(tmp_path / "drafter", net, MANIFEST)
    assert read_manifest(tmp_path) == read_manifest(tmp_path / "drafter") == MANIFEST
    loaded = load_network(tmp_path)
    for name, value in net.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    made = load_drafter(tmp_path, Host())
    direct = get_method("dflash").build_proposer(net, Host(), precision="fp32")
    for proposer in (made, direct):
        proposer.reset(30)
        proposer.extend(committed(document(1).features[:11]))
    assert torch.equal(made.propose(3), direct.propose(3))


def test_the_feature_contract_travels_whole_and_unchanged(tmp_path: Path) -> None:
    save_drafter(tmp_path, network(4), MANIFEST)
    path = tmp_path / "manifest.json"
    values = json.loads(path.read_text())
    assert values["feature_contract"] == MANIFEST.feature_contract.to_dict()
    assert values["feature_contract_hash"] == MANIFEST.feature_contract.hash
    for changes, message in (
        ({"feature_contract": {**values["feature_contract"], "precision": "bf16"}}, "the feature contract was changed"),
        ({"feature_contract": values["feature_contract_hash"]}, "expected the whole feature contract"),
        ({"feature_contract": {"precision": "fp32"}}, "feature_contract: expected the fields"),
    ):
        path.write_text(json.dumps({**values, **changes}))
        with pytest.raises(ValueError, match=message):
            read_manifest(tmp_path)


@pytest.mark.parametrize("damage", ["missing", "extra", "shape"])
def test_foreign_tensors_are_refused(tmp_path: Path, damage: str) -> None:
    save_drafter(tmp_path, network(), MANIFEST)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "layers.1.self_attn.k_norm.weight"
    if damage == "missing":
        del tensors[name]
    elif damage == "shape":
        tensors[name] = torch.ones(9)
    else:
        tensors[name + "x"] = torch.ones(1)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"1 tensors differ from the geometry, first 'layers\.1\.self_attn\.k_norm"):
        load_network(tmp_path)


def test_methods_are_folders() -> None:
    assert "dflash" in method_names()
    with pytest.raises(ValueError, match="unknown drafter method 'dflush'; known: dflash"):
        get_method("dflush")


@dataclass
class Tokenizer:
    added: dict[str, int]
    bos_token: str | None = "<s>"
    eos_token: str | None = "<|im_end|>"
    pad_token: str | None = "<|endoftext|>"
    unk_token: str | None = None
    chat_template: str = "{{ '<|im_start|>' }}{{ '<tool>' }}"
    words: dict[str, int] = field(default_factory=lambda: {"the": 3})

    def get_added_vocab(self) -> dict[str, int]:
        return self.added

    def get_vocab(self) -> dict[str, int]:
        return {**self.words, **self.added}


CHAT = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<s>": 9, "<think>": 8, "<tool>": 10}


def test_an_unused_special_is_chosen_in_a_fixed_order() -> None:
    plain = Tokenizer({**CHAT, "<repo_name>": 5, "<file_sep>": 4})
    assert choose_mask_token(plain, vocab_size=20) == ("<file_sep>", 4)
    assert choose_mask_token(plain, vocab_size=20, end_ids=[4]) == ("<repo_name>", 5)
    reserved = Tokenizer({**CHAT, "<file_sep>": 4, "<|reserved_special_token_7|>": 12})
    assert choose_mask_token(reserved, vocab_size=20) == ("<|reserved_special_token_7|>", 12)
    assert choose_mask_token(reserved, vocab_size=12) == ("<file_sep>", 4)  # outside the embedding's rows
    named = Tokenizer({**CHAT, "<|reserved_special_token_7|>": 12, "<|MASK|>": 15})
    assert choose_mask_token(named, vocab_size=20) == ("<|MASK|>", 15)


def test_chat_tokens_are_never_taken() -> None:
    with pytest.raises(NoMaskToken, match="set mask_token"):
        choose_mask_token(Tokenizer(dict(CHAT)), vocab_size=20)


def test_a_wanted_token_is_checked() -> None:
    tokenizer = Tokenizer({**CHAT, "<file_sep>": 4})
    assert choose_mask_token(tokenizer, vocab_size=20, wanted="the") == ("the", 3)
    for wrong in ("<|endoftext|>", "<|im_end|>", "<s>"):
        with pytest.raises(NoMaskToken, match="begins, ends or pads"):
            choose_mask_token(tokenizer, vocab_size=20, wanted=wrong)
    with pytest.raises(NoMaskToken, match="found none"):
        choose_mask_token(tokenizer, vocab_size=20, wanted="<absent>")
    with pytest.raises(NoMaskToken, match="begins, ends or pads"):
        choose_mask_token(tokenizer, vocab_size=20, wanted="<file_sep>", end_ids=[4])
