"""regenerate against a real local server: nothing asked twice, nothing lost, whatever the server does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specflow.config.regenerate import PromptSource, RegenerateParams
from specflow.stages import regenerate
from specflow.stages.contract import StageError
from tests.serving.fake_openai import MODEL, Act, FakeServer, completion
from tests.stages.pipeline_helpers import FakeContext, inputs, tiny_target, tree, write_lines

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [f"row {n}" for n in range(24)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    tiny_target(root)
    return root


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def params(
    folder: Path, url: str, *, train: list[Any] | None = None, heldout: Sequence[str] = ("held",), **more: Any
) -> RegenerateParams:
    rows = [{"messages": [user(t)]} for t in TEXTS] if train is None else [{"messages": m} for m in train]
    files = {
        "train": write_lines(folder / "prompts/train.jsonl", rows),
        "heldout": write_lines(folder / "prompts/heldout.jsonl", [{"messages": [user(t)]} for t in heldout]),
    }
    server = {"url": url, "concurrency": 4, "retries": 6, "backoff": 0.01, **more.pop("server", {})}
    return RegenerateParams.model_validate(
        {
            **{split: [PromptSource(path=path, kind="k")] for split, path in files.items()},
            "max_new_tokens": 8,
            "engine": "openai",
            "server": server,
            **more,
        }
    )


def run(root: Path, context: FakeContext, section: RegenerateParams) -> dict[str, Any]:
    return dict(regenerate.run(inputs(tiny_target(root)), section, context))


def rows(context: FakeContext) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (context.output / "conversations.jsonl").read_text().splitlines()]


def reasons(context: FakeContext) -> list[tuple[int, str]]:
    lines = (context.output / "quarantine.jsonl").read_text().splitlines()
    return [(q["row"], q["reason"]) for q in map(json.loads, lines)]


def test_every_row_is_asked_once_and_written_in_the_order_of_the_input(root: Path, tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "work")
    with FakeServer(behave=lambda n, body: Act(wait=0.01 * (n % 3))) as server:
        metrics = run(root, context, params(tmp_path, server.url))
        assert server.asked == dict.fromkeys([*TEXTS, "held"], 1)
        assert 2 <= server.most_in_flight <= 4
        body = server.bodies[0]
    assert {k: body[k] for k in ("model", "max_tokens", "temperature")} == {
        "model": MODEL, "max_tokens": 8, "temperature": 0.0,
    }  # fmt: skip
    assert body["return_token_ids"] is True
    assert "seed" not in body
    made = rows(context)
    assert [r["messages"] for r in made] == [
        [user(t), {"role": "assistant", "content": f"reply to {t}"}] for t in [*TEXTS, "held"]
    ]
    assert {(r["finish"], r["greedy"], r["thinking"]) for r in made} == {("stop", True, None)}
    assert not any("answer_ids" in r for r in made)
    assert metrics["server_model"] == MODEL
    assert metrics["rows"] == metrics["without_ids"] == metrics["answers"] == 25
    assert metrics["answer_tokens"] == 24 * 4 + 3
    json.dumps(metrics)


class Misbehaving:
    """Row ``n`` fails ``n % 4`` times, each time otherwise, before it is answered."""

    acts = (
        Act(status=429, headers={"Retry-After": "0.02"}),
        Act(status=500),
        Act(drop=True),
        Act(body="no json at all"),
        Act(body={"choices": []}),
        Act(status=503, wait=0.02),
    )

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __call__(self, n: int, body: dict[str, Any]) -> Act:
        name = body["messages"][-1]["content"]
        row = int(name.removeprefix("row ").replace("held", "0"))
        tries = self.seen[name]
        self.seen[name] += 1
        return self.acts[(row + tries) % len(self.acts)] if tries < row % 4 else Act()


def test_bad_moments_are_lived_through_with_the_same_result(root: Path, tmp_path: Path) -> None:
    calm, rough = FakeContext(tmp_path / "calm"), FakeContext(tmp_path / "rough")
    with FakeServer() as server:
        run(root, calm, params(tmp_path, server.url))
    with FakeServer(behave=Misbehaving()) as server:
        metrics = run(root, rough, params(tmp_path, server.url))
        assert server.asked == {**{t: 1 + n % 4 for n, t in enumerate(TEXTS)}, "held": 1}
    assert metrics["retried_requests"] == 6 * (0 + 1 + 2 + 3)
    assert tree(rough.output) == tree(calm.output)


def test_a_slow_answer_is_given_up_and_asked_for_again(root: Path, tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "work")
    with FakeServer(behave=lambda n, body: Act(hang=n == 3)) as server:
        section = params(tmp_path, server.url, server={"timeout": 0.3})
        assert run(root, context, section)["retried_requests"] == 1
        assert sorted(server.asked.values()) == [1] * 24 + [2]


def test_a_server_that_dies_stops_the_stage_and_a_new_one_is_asked_only_for_the_rest(
    root: Path, tmp_path: Path
) -> None:
    whole = FakeContext(tmp_path / "whole")
    with FakeServer() as server:
        run(root, whole, params(tmp_path, server.url))
    context = FakeContext(tmp_path / "work")

    def dies(n: int, body: dict[str, Any]) -> Act:
        if n == 10:
            threading.Timer(0.2, dying.die).start()  # the ten before it have arrived by then
        return Act(hang=n >= 10)

    with FakeServer(behave=dies) as dying:
        with pytest.raises(StageError) as caught:
            run(root, context, params(tmp_path, dying.url, server={"retries": 2}))
        done = {name for name, count in dying.answered.items() if count}
    kept = {json.loads(line)["id"] for line in (context.scratch / "answers.jsonl").read_text().splitlines()}
    assert len(kept) == len(done) == 10
    said = str(caught.value)
    assert f"{dying.url} does not answer any more: 3 tries" in said
    assert "10 of 25 rows are answered and kept" in said
    assert "specflow regenerate" in said
    again = FakeContext(tmp_path / "work")
    with FakeServer() as server:
        metrics = run(root, again, params(tmp_path, server.url))
        assert server.asked == {t: 1 for t in [*TEXTS, "held"] if t not in done}
    assert metrics["decoded_rows"] == 15
    assert tree(again.output) == tree(whole.output)


def test_a_killed_stage_asks_for_no_answered_row_again_and_loses_none(root: Path, tmp_path: Path) -> None:
    journal = tmp_path / "work/scratch/answers.jsonl"
    with FakeServer(behave=lambda n, body: Act(hang=n >= 9)) as server:
        section = params(tmp_path, server.url)
        command = [sys.executable, "-m", "tests.stages.regenerate_process", str(root), str(tmp_path / "work")]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen([*command, section.model_dump_json()], cwd=ROOT, env=environment)
        deadline = time.monotonic() + 120
        while not journal.exists() or journal.read_bytes().count(b"\n") < 9 or server.in_flight < 4:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        done = {name for name, count in server.answered.items() if count}
        before = dict(server.asked)
    assert len(done) == 9
    assert len(before) == 13  # four were in flight
    whole, again = FakeContext(tmp_path / "whole"), FakeContext(tmp_path / "work")
    with FakeServer() as server:
        run(root, again, params(tmp_path, server.url))
        assert server.asked == {t: 1 for t in [*TEXTS, "held"] if t not in done}
    with FakeServer() as server:
        run(root, whole, params(tmp_path, server.url))
    assert tree(again.output) == tree(whole.output)


def test_no_server_is_needed_when_nothing_is_left(root: Path, tmp_path: Path) -> None:
    first = FakeContext(tmp_path / "work")
    with FakeServer() as server:
        section = params(tmp_path, server.url)
        run(root, first, section)
    again = FakeContext(tmp_path / "work")
    assert run(root, again, section)["decoded_rows"] == 0
    assert tree(again.output) == tree(first.output)


@pytest.mark.parametrize(
    ("server", "models", "said"),
    [
        ({}, ("a", "b"), "serves these models: a, b; server.model is not set"),
        ({"model": "c"}, ("a",), "serves these models: a; server.model is 'c'"),
        ({}, (), "serves these models: none"),
    ],
)
def test_the_model_is_checked_before_anything_is_asked(
    root: Path, tmp_path: Path, server: dict[str, Any], models: tuple[str, ...], said: str
) -> None:
    with FakeServer(models=models) as fake, pytest.raises(StageError, match="expected one of them") as caught:
        run(root, FakeContext(tmp_path / "work"), params(tmp_path, fake.url, server=server))
    assert said in str(caught.value)
    assert not fake.bodies


def test_no_server_at_the_address_is_an_error_at_once(root: Path, tmp_path: Path) -> None:
    with FakeServer() as server:
        url = server.url
    begin = time.monotonic()
    with pytest.raises(StageError, match="does not answer") as caught:
        run(root, FakeContext(tmp_path / "work"), params(tmp_path, url, server={"backoff": 30}))
    assert url in str(caught.value)
    assert time.monotonic() - begin < 20


def test_a_wrong_key_stops_at_once_and_the_key_is_in_no_message_nor_file(root: Path, tmp_path: Path) -> None:
    key = "sk-very-secret"
    (tmp_path / "key").write_text(key + "\n")
    section = params(tmp_path, "http://127.0.0.1:1", server={"api_key_file": tmp_path / "key"})
    context = FakeContext(tmp_path / "work")

    def refuse(n: int, body: dict[str, Any]) -> Act:
        return Act(status=401, body={"error": f"no such key: {key}"})

    with FakeServer(behave=refuse) as server:
        asked = section.model_copy(update={"server": section.server.model_copy(update={"url": server.url})})
        with pytest.raises(StageError, match=r"HTTP 401 .*no such key: \*\*\*") as caught:
            run(root, context, asked)
        assert server.keys == {f"Bearer {key}"}
        assert len(server.bodies) <= 4
    with FakeServer() as server:
        asked = section.model_copy(update={"server": section.server.model_copy(update={"url": server.url})})
        metrics = run(root, context, asked)
    assert key not in str(caught.value) + json.dumps(metrics) + "".join(context.messages)
    assert not [p for p, data in tree(tmp_path / "work").items() if key.encode() in data]


def test_rows_that_the_server_refuses_are_set_aside_up_to_the_limit(root: Path, tmp_path: Path) -> None:
    def behave(n: int, body: dict[str, Any]) -> Act:
        last = body["messages"][-1]["content"]
        if last == "row 3":
            return Act(status=400, body={"error": "too long"})
        return Act(status=500 if last == "row 5" else 200)

    context = FakeContext(tmp_path / "work")
    with FakeServer(behave=behave) as server:
        metrics = run(root, context, params(tmp_path, server.url, max_skipped=0.1, server={"retries": 2}))
        assert (server.asked["row 3"], server.asked["row 5"]) == (1, 3)
    assert reasons(context) == [(4, "server_refused"), (6, "server_failed")]
    assert metrics["rows"] == 23
    with FakeServer(behave=behave) as server:
        section = params(tmp_path, server.url, max_skipped=0.05, server={"retries": 2})
        with pytest.raises(StageError, match=r"2 of 25 rows \(8\.0%\).*server_failed.*23 of 25 rows are answered"):
            run(root, FakeContext(tmp_path / "work"), section)
        assert set(server.asked) == {"row 3", "row 5"}  # the journal has the others


def test_too_many_refusals_stop_the_asking_and_answers_under_way_are_kept(root: Path, tmp_path: Path) -> None:
    """Rows 10 to 13 are asked for first: one of them is refused at once, while the others are being answered."""

    def behave(n: int, body: dict[str, Any]) -> Act:
        return Act(status=400, body={"error": "no"}) if n == 3 else Act(wait=0.4)

    context = FakeContext(tmp_path / "work")
    with FakeServer(behave=behave) as server:
        with pytest.raises(StageError, match=r"1 of 25 rows .*server_refused.*3 of 25 rows are answered and kept"):
            run(root, context, params(tmp_path, server.url, max_skipped=0.0))
        assert len(server.bodies) == 4
    assert len((context.scratch / "answers.jsonl").read_text().splitlines()) == 3


def test_an_overloaded_server_still_gives_the_answers_under_way(root: Path, tmp_path: Path) -> None:
    def behave(n: int, body: dict[str, Any]) -> Act:
        return Act(status=429) if n == 3 else Act(wait=0.4)

    context = FakeContext(tmp_path / "work")
    with FakeServer(behave=behave) as server:
        with pytest.raises(StageError, match=r"is overloaded: 1 tries.*3 of 25 rows are answered and kept"):
            run(root, context, params(tmp_path, server.url, server={"retries": 0}))
        assert len(server.bodies) == 4
    assert len((context.scratch / "answers.jsonl").read_text().splitlines()) == 3


def test_a_request_that_takes_too_long_is_asked_again_once(root: Path, tmp_path: Path) -> None:
    def behave(n: int, body: dict[str, Any]) -> Act:
        return Act(hang=body["messages"][-1]["content"] == "row 3")

    context = FakeContext(tmp_path / "work")
    with FakeServer(behave=behave) as server:
        run(root, context, params(tmp_path, server.url, server={"timeout": 0.4}))
        assert server.asked["row 3"] == 2
    assert reasons(context) == [(4, "server_failed")]


def test_answers_of_two_models_are_not_mixed(root: Path, tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "work")
    dying = FakeServer(behave=lambda n, body: Act(status=401 if n >= 9 else 200))
    with dying as server, pytest.raises(StageError, match="HTTP 401"):
        run(root, context, params(tmp_path, server.url))
    with FakeServer(models=("another",)) as server:
        with pytest.raises(
            StageError, match="serves another, and the answers kept from before are those of the-target"
        ):
            run(root, context, params(tmp_path, server.url))
        assert not server.bodies
    again = FakeContext(tmp_path / "work")
    with FakeServer() as server:
        section = params(tmp_path, server.url)
        assert run(root, again, section)["server_model"] == MODEL
    # With nothing left to ask, the artifact still says whose answers it has.
    assert run(root, FakeContext(tmp_path / "work"), section)["server_model"] == MODEL


def test_answers_that_are_no_unicode_are_set_aside(root: Path, tmp_path: Path) -> None:
    def call(arguments: str) -> dict[str, Any]:
        return {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}]}

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        asked = body["messages"][-1]["content"]
        if asked == "row 0":
            return completion("half \ud800 a pair")
        if asked == "row 1":
            return completion("yes", message={"reasoning_content": "\udc00"})
        if asked == "row 2":
            return completion("", finish="tool_calls", message=call('{"x": "\\ud800"}'))
        if asked == "row 3":
            return completion("yes", finish="\ud800")
        return completion("whole \U0001f600", message=call('{"x": "\\ud83d\\ude00"}'), finish="tool_calls")

    context = FakeContext(tmp_path / "work")
    with FakeServer(answer=answer) as server:
        run(root, context, params(tmp_path, server.url, max_skipped=0.2))
    found = [(1, "not_unicode"), (2, "not_unicode"), (3, "not_unicode"), (4, "unusable_finish")]
    assert reasons(context) == found
    assert len(rows(context)) == 21


def test_token_ids_of_a_server_are_used_wherever_it_puts_them(root: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(root / "target")
    (end,) = tokenizer.encode("<|im_end|>", add_special_tokens=False)

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        prompt = tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, return_dict=False)
        last = body["messages"][-1]["content"]
        ids = tokenizer.encode(f"yes {last}", add_special_tokens=False)
        if last in ("row 0", "held"):  # as one engine does it
            return {**completion(f"yes {last}", token_ids=[*ids, end]), "prompt_token_ids": prompt}
        if last == "row 1":  # as another does it
            return completion(f"yes {last}", response_token_ids=[*ids, end], prompt_token_ids=prompt)
        if last == "row 2":  # the end token is cut off and named
            return completion(f"yes {last}", response_token_ids=ids, matched_stop=end, prompt_token_ids=prompt)
        if last == "row 3":  # the prompt was rendered otherwise: what was read counts
            return completion(f"yes {last}", token_ids=[*ids, end], prompt_token_ids=[1, 2, 3])
        if last == "row 4":  # another prompt, but which? the ids are worth nothing
            return {**completion(f"yes {last}", token_ids=[*ids, end]), "usage": {"prompt_tokens": 3}}
        return completion(f"yes {last}", token_ids=ids)  # no end token anywhere

    context = FakeContext(tmp_path / "work")
    with FakeServer(answer=answer) as server:
        section = params(tmp_path, server.url, train=[[user(f"row {n}")] for n in range(6)], max_skipped=0.5)
        metrics = run(root, context, section)
    made = rows(context)
    assert reasons(context) == [(6, "no_end_token")]
    assert [r["messages"][-1]["content"] for r in made] == [*(f"yes row {n}" for n in range(5)), "yes held"]
    for n, row in enumerate(made[:4]):
        assert row["answer_ids"] == [*tokenizer.encode(f"yes row {n}", add_special_tokens=False), end]
        text = f"<|im_start|>user\nrow {n}<|im_end|>\n<|im_start|>assistant\n"
        assert row["prompt_ids"] == ([1, 2, 3] if n == 3 else tokenizer.encode(text, add_special_tokens=False))
    assert "answer_ids" not in made[4]
    assert metrics["prompts_differ"] == 2
    assert metrics["without_ids"] == 1
    assert any("rendered 2 of 7 prompts otherwise" in message for message in context.messages)


def test_sampling_and_thinking_mode_are_sent_and_recorded(root: Path, tmp_path: Path) -> None:
    seeds: dict[str, set[int]] = {}
    for seed in (0, 0, 1):
        context = FakeContext(tmp_path / f"work-{seed}-{len(seeds)}")
        with FakeServer(answer=lambda body: completion("<think>\nhm\n</think>\n\nyes")) as server:
            section = params(
                tmp_path, server.url, temperature=0.7, top_p=0.9, top_k=20, seed=seed, thinking=True,
                chat_template_kwargs={"effort": "low"}, server={"token_ids": False},
            )  # fmt: skip
            metrics = run(root, context, section)
        for body in server.bodies:
            assert (body["temperature"], body["top_p"], body["top_k"]) == (0.7, 0.9, 20)
            assert body["chat_template_kwargs"] == {"enable_thinking": True, "thinking": True, "effort": "low"}
            assert "return_token_ids" not in body
        seeds.setdefault(str(seed), set()).update(body["seed"] for body in server.bodies)
        assert {r["thinking"] for r in rows(context)} == {True}
        assert {r["greedy"] for r in rows(context)} == {False}
        assert metrics["sampling"] == {
            "temperature": 0.7, "top_p": 0.9, "top_k": 20, "seed": seed, "max_new_tokens": 8,
        }  # fmt: skip
        assert (metrics["thinking"], metrics["chat_template_kwargs"]) == (True, {"effort": "low"})
    assert {len(found) for found in seeds.values()} == {25}  # the same seed twice gives the same 25
    assert not seeds["0"] & seeds["1"]


def test_a_mode_that_is_not_the_declared_one_is_set_aside(root: Path, tmp_path: Path) -> None:
    answers = {
        "row 0": completion("yes"),
        "row 1": completion("<think>\nhm\n</think>\n\nyes"),
        "row 2": completion("yes", message={"reasoning_content": "hm"}),
        "row 3": completion("hm, hm", finish="length", token_ids=[5, 6]),
        "held": completion("hm</think>yes"),
        "held too": completion("yes"),
    }

    def ask(thinking: bool | None) -> FakeContext:
        context = FakeContext(tmp_path / f"work-{thinking}")
        with FakeServer(answer=lambda body: answers[body["messages"][-1]["content"]]) as server:
            train = [[user(f"row {n}")] for n in range(4)]
            section = params(
                tmp_path, server.url, train=train, heldout=("held", "held too"), thinking=thinking, max_skipped=0.7
            )
            assert run(root, context, section)["thinking"] == thinking
        return context

    off, on, undeclared = ask(False), ask(True), ask(None)
    assert reasons(off) == [(2, "thinking_not_declared"), (3, "thinking_not_declared"), (1, "thinking_not_declared")]
    assert reasons(on) == [(1, "thinking_missing"), (2, "thinking_missing")]
    assert reasons(undeclared) == []
    (thought,) = [r for r in rows(on) if "reasoning_content" in r["messages"][-1]]
    assert thought["messages"][-1] == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}


@pytest.mark.parametrize(("policy", "with_ids"), [("keep", True), ("drop", True), ("keep", False)])
def test_answers_that_ended_by_length_are_marked_or_dropped(
    root: Path, tmp_path: Path, policy: str, with_ids: bool
) -> None:
    end = json.loads((root / "target/config.json").read_text())["eos_token_id"]

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        cut = body["messages"][-1]["content"] < "row 2"
        ids = {"token_ids": [5, 6] if cut else [5, end]} if with_ids else {}
        return completion("and so on", finish="length" if cut else "stop", **ids)

    context = FakeContext(tmp_path / "work")
    with FakeServer(answer=answer) as server:
        metrics = run(
            root,
            context,
            params(tmp_path, server.url, heldout=("held", "whole"), length_limited=policy, max_skipped=0.0),
        )
    cut = [t for t in [*TEXTS, "held"] if t < "row 2"]
    assert len(cut) == 13
    found = {r["messages"][0]["content"]: r["finish"] for r in rows(context)}
    kept = policy == "keep" and with_ids  # half an answer can be kept only by its ids
    marked = dict.fromkeys(cut, "length") if kept else {}
    assert found == {**{t: "stop" for t in [*TEXTS, "whole"] if t not in cut}, **marked}
    assert metrics["dropped_by_length"] == len(reasons(context)) == (0 if kept else 13)
    assert {reason for _, reason in reasons(context)} <= {"ended_by_length"}


def test_turns_are_answered_in_order_and_on_top_of_the_new_ones(root: Path, tmp_path: Path) -> None:
    old = {"role": "assistant", "content": "old"}
    system = {"role": "system", "content": "be short"}
    train = [
        [system, user("a1"), old, user("a2"), old, user("a3")],
        [user("b1"), old, user("b2"), old],
        [user("c1"), old, user("c2 long"), old, user("c3")],
    ]
    expected = [
        [system, user("a1"), say("0:a1"), user("a2"), say("2:a2"), user("a3"), say("4:a3")],
        [user("b1"), say("0:b1"), user("b2"), say("2:b2")],
        [user("c1"), say("0:c1"), user("c2 long"), say("2:c2 long")],
    ]

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        talk = [m for m in body["messages"] if m["role"] != "system"]
        assert old not in talk
        last = talk[-1]["content"]
        more: dict[str, Any] = {"finish": "length", "token_ids": [5, 6]} if "long" in last else {}
        return completion(f"{len(talk) - 1}:{last}", **more)

    train[1].pop()  # it is what is asked for
    context = FakeContext(tmp_path / "work")
    with FakeServer(answer=answer) as server:
        metrics = run(root, context, params(tmp_path, server.url, train=train, turns="all"))
        asked = [body["messages"][-1]["content"] for body in server.bodies]
    assert [r["messages"] for r in rows(context)][:3] == expected
    assert [name for name in asked if name[0] == "a"] == ["a1", "a2", "a3"]
    assert "c3" not in asked  # what follows a cut answer is no reaction to it
    assert metrics["stopped_early"] == 1
    assert metrics["answers"] == len(asked) == 8


def say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
