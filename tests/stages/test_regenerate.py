"""The regenerate stage: order, resume, seeds, quarantine, checks. Decoding is replaced by a rule, except at the end."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.config.regenerate import PromptSource, RegenerateParams
from specflow.decoding.records import Generation
from specflow.decoding.sampling import Sampling
from specflow.stages import regenerate
from specflow.stages.contract import StageError
from tests.stages.pipeline_helpers import FakeContext, inputs, tiny_target, tree, write_lines


class Killed(Exception):
    pass


class FakeDecoder:
    """The answer is a function of prompt and seed. Rows finish shortest prompt first, as in a real batch."""

    def __init__(self, *, die_after: int | None = None, empty: Callable[[list[int]], bool] = lambda _: False) -> None:
        self.prompts: list[list[int]] = []
        self.options: dict[str, Any] = {}
        self._die_after, self._empty = die_after, empty

    def __call__(
        self,
        target: Any,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        on_done: Callable[[int, Generation], None],
        sampling: Sequence[Sampling],
        **options: Any,
    ) -> list[Generation]:
        seeds = [s.seed for s in sampling]
        self.prompts, self.options = [list(p) for p in prompts], {"seeds": seeds, **options}
        self.options["filters"] = {(s.temperature, s.top_p, s.top_k) for s in sampling}
        (end,) = target.end_ids
        done = []
        for n, i in enumerate(sorted(range(len(prompts)), key=lambda i: len(prompts[i]))):
            if n == self._die_after:
                raise Killed
            prompt = list(prompts[i])
            stop = sum(prompt) % 2 == 0
            length = max_new_tokens - 1 if stop else max_new_tokens
            tokens = [(sum(prompt) + seeds[i] * k) % 250 for k in range(length)] + ([end] if stop else [])
            made = Generation(
                prompt_length=len(prompt),
                tokens=[end] if self._empty(prompt) else tokens,
                finish="stop" if stop or self._empty(prompt) else "length",
            )
            on_done(i, made)
            done.append(made)
        return done


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("regenerate")
    tiny_target(root)
    return root


def use(monkeypatch: pytest.MonkeyPatch, decoder: Any) -> Any:
    module = types.ModuleType("specflow.decoding.plain")
    module.decode_plain = decoder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "specflow.decoding.plain", module)
    return decoder


def prompt(text: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


TEXTS = ("one", "three words here", "two a", "one more", "a")


def params(
    root: Path, train: list[Any] | None = None, heldout: list[Any] | None = None, **more: Any
) -> RegenerateParams:
    folder = root / "prompts"
    train_file = write_lines(folder / "train.jsonl", [prompt(t) for t in TEXTS] if train is None else train)
    heldout_file = write_lines(folder / "heldout.jsonl", [prompt("held")] if heldout is None else heldout)
    settings = {"max_new_tokens": 5, "precision": "fp32", "threads": 1, **more}
    return RegenerateParams(
        train=(PromptSource(path=train_file, kind="k"),),
        heldout=(PromptSource(path=heldout_file, kind="k"),),
        **settings,
    )


def run(root: Path, context: FakeContext, section: RegenerateParams) -> dict[str, Any]:
    return dict(regenerate.run(inputs(tiny_target(root)), section, context))


def rows(context: FakeContext) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (context.output / "conversations.jsonl").read_text().splitlines()]


def test_rows_are_in_input_order_and_decoded_sorted(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = use(monkeypatch, FakeDecoder())
    context = FakeContext(tmp_path / "work")
    metrics = run(root, context, params(tmp_path))
    made = rows(context)
    assert [r["messages"][0]["content"] for r in made] == [*TEXTS, "held"]
    assert [r["id"] for r in made[:2]] == ["train/k/train/00001", "train/k/train/00002"]
    assert [r["split"] for r in made] == ["train"] * 5 + ["heldout"]
    assert decoder.prompts == sorted(decoder.prompts)
    assert sorted(r["prompt_ids"] for r in made) == decoder.prompts
    for r in made:
        assert r["finish"] == ("stop" if sum(r["prompt_ids"]) % 2 == 0 else "length")
        assert r["messages"][-1]["role"] == "assistant"
        assert r["greedy"] is True
    assert metrics["finish"] == {f: n for f in ("length", "stop") if (n := sum(r["finish"] == f for r in made))}
    assert metrics["rows"] == metrics["prompts"] == metrics["decoded_rows"] == 6
    assert metrics["answer_tokens"] == sum(len(r["answer_ids"]) for r in made) == 30
    assert metrics["by_kind"] == {"heldout/k": 1, "train/k": 5}
    json.dumps(metrics)


def test_text_is_the_decoded_answer_without_its_end(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    use(monkeypatch, FakeDecoder())
    context = FakeContext(tmp_path / "work")
    run(root, context, params(tmp_path))
    tokenizer = AutoTokenizer.from_pretrained(root / "target")
    made = rows(context)
    assert {r["finish"] for r in made} == {"stop", "length"}
    for r in made:
        ids = r["answer_ids"][:-1] if r["finish"] == "stop" else r["answer_ids"]
        assert r["messages"][-1]["content"] == tokenizer.decode(ids)
        assert tokenizer.decode(r["prompt_ids"]).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("die_after", range(6))
def test_a_killed_run_resumes_to_the_same_bytes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, die_after: int
) -> None:
    use(monkeypatch, FakeDecoder())
    whole = FakeContext(tmp_path / "whole")
    run(root, whole, params(tmp_path))
    context = FakeContext(tmp_path / "work")
    use(monkeypatch, FakeDecoder(die_after=die_after))
    with pytest.raises(Killed):
        run(root, context, params(tmp_path))
    with (context.scratch / "answers.jsonl").open("a") as file:
        file.write('{"id": "train/k/000')  # a line torn by the kill
    decoder = use(monkeypatch, FakeDecoder())
    again = FakeContext(tmp_path / "work")
    metrics = run(root, again, params(tmp_path))
    assert len(decoder.prompts) == metrics["decoded_rows"] == 6 - die_after
    assert tree(again.output) == tree(whole.output)


def test_nothing_left_decodes_nothing(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeDecoder())
    first = FakeContext(tmp_path / "work")
    run(root, first, params(tmp_path))
    use(monkeypatch, FakeDecoder(die_after=0))
    again = FakeContext(tmp_path / "work")
    assert run(root, again, params(tmp_path))["decoded_rows"] == 0
    assert tree(again.output) == tree(first.output)


def test_each_row_has_its_own_seed(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seeds(seed: int, texts: Sequence[str]) -> dict[str, int]:
        decoder = use(monkeypatch, FakeDecoder())
        train = [prompt(t, id=t) for t in texts]
        context = FakeContext(tmp_path / f"{seed}-{len(texts)}")
        run(root, context, params(tmp_path, train=train, seed=seed, temperature=0.7, top_p=0.9, top_k=5))
        assert decoder.options["filters"] == {(0.7, 0.9, 5)}
        assert not rows(context)[0]["greedy"]
        by_prompt = {tuple(p): s for p, s in zip(decoder.prompts, decoder.options["seeds"], strict=True)}
        return {r["id"]: by_prompt[tuple(r["prompt_ids"])] for r in rows(context)}

    one = seeds(0, TEXTS)
    assert len(set(one.values())) == 6
    assert seeds(0, TEXTS[1:3]).items() <= one.items()
    assert not set(seeds(1, TEXTS).values()) & set(one.values())


def test_empty_answers_and_bad_prompts_are_set_aside(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, FakeDecoder(empty=lambda p: len(p) == max_length))
    train = [prompt(t) for t in (*TEXTS, "the longest of all of these prompts")] + [{"messages": []}]
    max_length = 0
    context = FakeContext(tmp_path / "probe")
    run(root, context, params(tmp_path, train=train, max_skipped=0.5))
    max_length = max(len(r["prompt_ids"]) for r in rows(context))
    context = FakeContext(tmp_path / "work")
    metrics = run(root, context, params(tmp_path, train=train, max_skipped=0.25))
    assert metrics["quarantine_reasons"] == {"empty_answer": 1, "empty_messages": 1}
    quarantine = [json.loads(line) for line in (context.output / "quarantine.jsonl").read_text().splitlines()]
    assert [(q["row"], q["reason"]) for q in quarantine] == [(7, "empty_messages"), (6, "empty_answer")]
    assert len(rows(context)) == 6
    # Each is judged against its own: one of eight rows read, and one of the seven asked.
    for share, said in ((0.13, r"1 of 7 rows \(14\.3%\).*empty_answer"), (0.12, r"1 of 8 rows \(12\.5%\)")):
        with pytest.raises(StageError, match=said):
            run(root, FakeContext(tmp_path / "work"), params(tmp_path, train=train, max_skipped=share))
    run(root, FakeContext(tmp_path / "work"), params(tmp_path, train=train, max_skipped=0.15))


def test_too_many_prompts_that_cannot_be_asked_stop_the_stage_before_any_is(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = use(monkeypatch, FakeDecoder())
    section = params(tmp_path, train=[prompt("z" * 4200), prompt("a"), prompt("b")], max_skipped=0.2)
    with pytest.raises(StageError, match=r"1 of 4 rows \(25\.0%\).*prompt_too_long.*0 of 4 rows are answered"):
        run(root, FakeContext(tmp_path / "work"), section)
    assert decoder.prompts == []


def test_too_many_bad_answers_stop_the_stage_at_once_and_a_raised_limit_goes_on(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = [prompt("word " * n) for n in range(1, 40)]
    order: dict[tuple[int, ...], int] = {}

    def every_second(ids: list[int]) -> bool:
        return order.setdefault(tuple(ids), len(order)) % 2 == 1

    use(monkeypatch, FakeDecoder(empty=every_second))
    sure = FakeContext(tmp_path / "sure")
    run(root, sure, params(tmp_path, train=train, max_skipped=0.9))
    empty = [q["id"] for q in map(json.loads, (sure.output / "quarantine.jsonl").read_text().splitlines())]
    assert len(empty) == 20
    context = FakeContext(tmp_path / "work")
    with pytest.raises(StageError, match=r"3 of 40 rows \(7\.5%\).*are answered and kept in .*answers\.jsonl"):
        run(root, context, params(tmp_path, train=train, max_skipped=0.05))
    known = [json.loads(line)["id"] for line in (context.scratch / "answers.jsonl").read_text().splitlines()]
    assert len(set(known) & set(empty)) == 3
    assert len(known) == 6
    again = FakeContext(tmp_path / "work")
    assert run(root, again, params(tmp_path, train=train, max_skipped=0.9))["decoded_rows"] == 40 - len(known)
    assert tree(again.output) == tree(sure.output)


def test_the_limit_of_bad_rows_is_not_in_the_key(tmp_path: Path) -> None:
    from specflow.workflow.keys import key_parameters

    one, two = (params(tmp_path, max_skipped=share) for share in (0.05, 0.5))
    assert key_parameters(one, regenerate.files(one)) == key_parameters(two, regenerate.files(two))


def test_duplicates_and_rows_not_drawn_do_not_raise_the_limit_of_bad_answers(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = [prompt("word " * n) for n in range(1, 10)] + [prompt("word ")] * 200
    asked: list[list[int]] = []

    def the_first(ids: list[int]) -> bool:
        asked.append(ids)
        return ids == asked[0]

    use(monkeypatch, FakeDecoder(empty=the_first))
    with pytest.raises(StageError, match=r"1 of 10 rows .*empty_answer"):
        run(root, FakeContext(tmp_path / "work"), params(tmp_path, train=train, max_skipped=0.05))


def test_a_split_without_an_answer_is_told_with_its_true_reason(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, FakeDecoder(empty=lambda _: True))
    said = r"no train and no heldout row is left of 6 that were asked\. Gone by reason: \{'empty_answer': 6\}"
    with pytest.raises(StageError, match=said) as caught:
        run(root, FakeContext(tmp_path / "work"), params(tmp_path, max_skipped=1.0))
    assert "max_new_tokens" not in str(caught.value)


def test_prompts_without_room_for_an_answer_are_set_aside(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, FakeDecoder())
    train = [prompt("z" * 4200), prompt("a")]
    metrics = run(root, FakeContext(tmp_path / "work"), params(tmp_path, train=train, max_skipped=0.5))
    assert metrics["quarantine_reasons"] == {"prompt_too_long": 1}


def test_check_names_file_and_line(tmp_path: Path) -> None:
    section = params(tmp_path)
    assert list(regenerate.check(section)) == []
    (tmp_path / "prompts/train.jsonl").write_text(json.dumps(prompt("a")) + "\n{oops\n")
    (tmp_path / "prompts/heldout.jsonl").write_text("")
    problems = list(regenerate.check(section))
    assert [p.where for p in problems] == ["train.0.path", "heldout.0.path"]
    assert "train.jsonl:2: expected one JSON object per line, found '{oops'" in problems[0].found
    assert "heldout.jsonl: the file is empty" in problems[1].found
    (tmp_path / "prompts/heldout.jsonl").unlink()
    assert "found nothing" in list(regenerate.check(section))[1].found


def test_check_counts_bad_and_leaked_rows(tmp_path: Path) -> None:
    section = params(tmp_path, train=[prompt(t) for t in TEXTS], heldout=[prompt("one")])
    (problem,) = regenerate.check(section)
    assert problem.where == "train"
    assert "1 of 6 rows (16.7%) cannot be used" in problem.found
    assert "also_heldout" in problem.found


def test_files_and_estimate(tmp_path: Path) -> None:
    section = params(tmp_path)
    assert [p.name for p in regenerate.files(section)] == ["train.jsonl", "heldout.jsonl"]
    assert regenerate.estimate(section).note == "6 prompts, at most 30 tokens"
    (tmp_path / "prompts/train.jsonl").unlink()
    assert regenerate.estimate(section).bytes is None


def test_real_answers_are_the_targets_greedy_ones(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("specflow.decoding.plain")
    from specflow.targets.target import Target

    context = FakeContext(tmp_path / "work")
    run(root, context, params(tmp_path, max_new_tokens=12, batch_size=3, max_skipped=0.5))
    target = Target.load(root / "target", precision="fp32", threads=1)
    for row in rows(context):
        ids = row["prompt_ids"] + row["answer_ids"]
        output = target.forward(torch.tensor([ids]), target.new_cache(1, len(ids)))
        choices = target.head(output.last_hidden_BTH[0]).argmax(-1).tolist()
        start = len(row["prompt_ids"])
        assert choices[start - 1 : -1] == row["answer_ids"]
        assert (row["finish"] == "stop") == (ids[-1] in target.end_ids)
        assert len(row["answer_ids"]) == 12 or row["finish"] == "stop"


def test_every_turn_is_the_targets_own_on_top_of_its_earlier_ones(root: Path, tmp_path: Path) -> None:
    from specflow.targets.target import Target

    tiny_target(tmp_path)  # with so many end tokens that answers do end
    generation = tmp_path / "target/generation_config.json"
    generation.write_text(json.dumps(json.loads(generation.read_text()) | {"eos_token_id": list(range(60))}))
    old = {"role": "assistant", "content": "something that the target never said"}
    talks = [[f"{a}{n}" for n in range(3)] for a in "abcdefgh"]
    train = [{"messages": [m for t in talk for m in ({"role": "user", "content": t}, old)][:-1]} for talk in talks]
    context = FakeContext(tmp_path / "work")
    section = params(tmp_path, train=train, turns="all", max_new_tokens=6, batch_size=2, max_skipped=0.9)
    metrics = run(tmp_path, context, section)
    target = Target.load(tmp_path / "target", precision="fp32", threads=1)
    made = rows(context)
    for row in made:
        assert old not in row["messages"]
        assert [t["finish"] for t in row["turns"][:-1]] == ["stop"] * (len(row["turns"]) - 1)
        for n, turn in enumerate(row["turns"]):
            before = row["messages"][: 2 * n + 1]
            rendered = target.tokenizer.apply_chat_template(before, add_generation_prompt=True, return_dict=False)
            assert turn["prompt_ids"] == rendered
            ids = turn["prompt_ids"] + turn["answer_ids"]
            output = target.forward(torch.tensor([ids]), target.new_cache(1, len(ids)))
            choices = target.head(output.last_hidden_BTH[0]).argmax(-1).tolist()
            assert choices[len(rendered) - 1 : -1] == turn["answer_ids"]
    assert metrics["answers"] == sum(len(r["turns"]) for r in made)
    assert {1, 3} <= {len(r["turns"]) for r in made}


@pytest.mark.parametrize("die_after", range(9))
def test_a_killed_run_of_many_turns_resumes_to_the_same_bytes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, die_after: int
) -> None:
    old = {"role": "assistant", "content": "old"}
    talks = [["a", "b c", "d"], ["e"], ["f", "g"], ["h", "i"]]
    train = [{"messages": [m for t in talk for m in ({"role": "user", "content": t}, old)][:-1]} for talk in talks]
    section = params(tmp_path, train=train, turns="all", max_skipped=0.5)
    done = 0

    def counted(limit: int | None) -> Any:
        def decode(target: Any, prompts: Any, *, on_done: Any, **_: Any) -> None:
            nonlocal done
            for i, prompt in enumerate(prompts):
                if done == limit:
                    raise Killed
                done += 1
                tokens = [prompt[-3] % 200, len(prompt) % 200, *target.end_ids]
                on_done(i, Generation(prompt_length=len(prompt), tokens=tokens, finish="stop"))

        return decode

    use(monkeypatch, counted(None))
    whole = FakeContext(tmp_path / "whole")
    run(root, whole, section)
    assert done == 9
    done = 0
    use(monkeypatch, counted(die_after))
    with pytest.raises(Killed):
        run(root, FakeContext(tmp_path / "work"), section)
    done = 0
    use(monkeypatch, counted(None))
    again = FakeContext(tmp_path / "work")
    assert run(root, again, section)["decoded_rows"] == done == 9 - die_after
    assert tree(again.output) == tree(whole.output)
    assert [[len(t["answer_ids"]) for t in r["turns"]] for r in rows(again)] == [[3] * n for n in (3, 1, 2, 2, 1)]
