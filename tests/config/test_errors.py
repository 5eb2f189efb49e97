"""Every bad input: which file, which line, what was found, what was expected, and the nearest valid name."""

from __future__ import annotations

from pathlib import Path

import pytest

from specflow.config.errors import InputProblem, nearest
from specflow.config.loading import load_config
from specflow.config.overrides import parse_overrides
from tests.config.support import VALID, problems, write


def only(found: list[InputProblem]) -> InputProblem:
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]


def spoiled(tmp_path: Path, before: str, after: str) -> InputProblem:
    assert before in VALID
    return only(problems(write(tmp_path, VALID.replace(before, after))))


def place(problem: InputProblem) -> tuple[int | None, int | None]:
    return problem.location.line, problem.location.column


def test_unknown_key(tmp_path: Path) -> None:
    problem = spoiled(tmp_path, "max_new_tokens: 8", "max_new_token: 8")
    assert problem.message == "unknown key"
    assert problem.location.source == str(tmp_path / "config.yaml")
    assert place(problem) == (9, 3)
    assert (problem.path, problem.found) == ("regenerate.max_new_token", "max_new_token")
    assert problem.hint == "did you mean `max_new_tokens`?"
    assert "batch_size" in problem.expected


def test_a_key_in_the_wrong_section_is_told_where_it_belongs(tmp_path: Path) -> None:
    problem = spoiled(tmp_path, "    method: dflash\n    train:\n      steps: 5", "    method: dflash\n    steps: 5")
    assert (problem.path, place(problem)) == ("drafters.first.steps", (15, 5))
    assert problem.hint == "`steps` belongs to bench.tree, compare.trees.*, drafters.*.train, export.tree, verify.tree"


def test_wrong_type(tmp_path: Path) -> None:
    problem = spoiled(tmp_path, "max_new_tokens: 8", 'max_new_tokens: "8"')
    assert (problem.message, problem.found) == ("wrong type", '"8" (text)')
    assert (problem.expected, place(problem)) == ("a whole number", (9, 19))


def test_true_is_not_a_number(tmp_path: Path) -> None:
    assert spoiled(tmp_path, "steps: 5", "steps: true").found == "true (true/false)"


def test_a_value_where_a_section_belongs(tmp_path: Path) -> None:
    problem = spoiled(tmp_path, "target:\n  source: random:0", "target: random:0")
    assert (problem.found, problem.expected, place(problem)) == ('"random:0" (text)', "a mapping", (2, 9))


def test_wrong_choice(tmp_path: Path) -> None:
    problem = spoiled(tmp_path, "max_new_tokens: 8", "precision: bf61")
    assert problem.expected == "one of auto, fp32, bf16, packed"
    assert problem.hint == "did you mean `bf16`?"


def test_out_of_range(tmp_path: Path) -> None:
    problem = spoiled(tmp_path, "steps: 5", "steps: 0")
    assert (problem.found, problem.expected) == ("0", "greater than or equal to 1")


def test_missing_key(tmp_path: Path) -> None:
    problem = spoiled(tmp_path, "  source: random:0\n", "  dtype: float32\n")
    assert (problem.message, problem.path, place(problem)) == ("missing key", "target.source", (2, 1))
    assert problem.expected.startswith("`source`: Where the model comes from")


def test_missing_and_wrong_method(tmp_path: Path) -> None:
    missing = spoiled(tmp_path, "    method: dflash\n    train", "    train")
    assert (missing.message, missing.path) == ("missing key", "drafters.first.method")
    wrong = spoiled(tmp_path, "method: dflash\n    train", "method: dflush\n    train")
    assert wrong.expected.startswith("one of dflash")
    assert (wrong.hint, place(wrong)) == ("did you mean `dflash`?", (14, 13))


def test_empty_list(tmp_path: Path) -> None:
    problem = spoiled(tmp_path, "train:\n    - {path: train.jsonl, kind: a}", "train: []")
    assert (problem.found, problem.expected) == ("[]", "at least 1 entry")


def test_list_too_short(tmp_path: Path) -> None:
    problem = spoiled(tmp_path, "steps: 5", "betas: [0.9]")
    assert (problem.path, problem.expected) == ("drafters.first.train.betas", "at least 2 entries")


@pytest.mark.parametrize(
    ("ids", "hint"),
    [
        ("[2, 1]", "in order: [1, 2]"),
        ("[1, 1]", "1 stands 2 times"),
        ("[-1, 2]", "-1 is below 0"),
        ("[-3]", "-3 is below 0"),
        ("[2, 1, 2, -1]", "-1 is below 0; 2 stands 2 times; in order: [1, 2]"),
    ],
)
def test_layer_ids_out_of_order(tmp_path: Path, ids: str, hint: str) -> None:
    path = write(tmp_path)
    for key in ("capture.layer_ids", "drafters.first.layer_ids"):
        problem = problems(path, f"{key}={ids}")[0]
        assert (problem.message, problem.found, problem.hint) == ("layer ids out of order", ids, hint)


def test_a_drafter_cannot_read_what_is_not_captured(tmp_path: Path) -> None:
    problem = spoiled(tmp_path, "layer_ids: [2]", "layer_ids: [2, 3]")
    assert (problem.message, problem.found) == ("layers that are not captured", "[3]")
    assert (problem.path, place(problem)) == ("drafters.second.layer_ids", (19, 16))
    assert problem.expected == "layers among capture.layer_ids: 1, 2"


def test_heldout_prompts_must_not_be_trained_on(tmp_path: Path) -> None:
    problem = spoiled(tmp_path, "path: held.jsonl", "path: train.jsonl")
    assert (problem.message, place(problem)) == ("held-out prompts are also trained on", (8, 14))


def test_bad_drafter_name(tmp_path: Path) -> None:
    problem = spoiled(tmp_path, "  first:", "  fir/st:")
    assert (problem.message, problem.found, place(problem)) == ("not a valid name", "fir/st", (13, 3))


def test_missing_prompts_file(tmp_path: Path) -> None:
    problem = spoiled(tmp_path, "path: train.jsonl", "path: trian.jsonl")
    assert (problem.message, problem.found) == ("no such file", str(tmp_path / "trian.jsonl"))
    assert (problem.hint, place(problem)) == (f"relative paths start at {tmp_path}", (6, 14))


def test_missing_configuration_names_the_nearest(tmp_path: Path) -> None:
    problem = only(problems("smokey"))
    assert problem.message == "no such configuration file"
    assert problem.hint == "did you mean `smoke`?"
    assert "quickstart" in problem.expected
    gone = only(problems(tmp_path / "gone.yaml"))
    assert gone.found == str(tmp_path / "gone.yaml")


def test_a_directory_is_no_configuration(tmp_path: Path) -> None:
    assert only(problems(tmp_path)).message == "is a directory, not a configuration"


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("name: a\ntarget: [1, 2\nx: 1\n", 3, 2),
        ("name: a\n\tb: 1\n", 2, 1),
        ("a: 1\n  b: 2\n", 2, 4),
        ("a: *no\n", 1, 4),
    ],
)
def test_yaml_syntax(tmp_path: Path, text: str, line: int, column: int) -> None:
    problem = only(problems(write(tmp_path, text)))
    assert problem.message.startswith("not valid YAML")
    assert place(problem) == (line, column)


def test_two_documents_are_an_error(tmp_path: Path) -> None:
    assert place(only(problems(write(tmp_path, VALID + "---\nname: b\n")))) == (20, 1)


def test_duplicate_key(tmp_path: Path) -> None:
    problem = only(problems(write(tmp_path, VALID + "name: again\n")))
    assert (problem.message, problem.path, place(problem)) == ("duplicate key", "name", (20, 1))
    assert problem.found == "again on line 20, first on line 1"


def test_duplicate_drafter(tmp_path: Path) -> None:
    assert spoiled(tmp_path, "  second:", "  first:").path == "drafters.first"


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "~\n"])
def test_empty_file(tmp_path: Path, text: str) -> None:
    assert only(problems(write(tmp_path, text))).message == "the file is empty"


def test_a_list_is_no_configuration(tmp_path: Path) -> None:
    problem = only(problems(write(tmp_path, "- a\n")))
    assert (problem.found, problem.expected) == ("list", "a mapping")


def test_not_text(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(b"name: \xff\xfe\n")
    assert only(problems(path)).message == "the file is not UTF-8 text"


def test_an_alias_to_itself_ends(tmp_path: Path) -> None:
    assert "alias" in problems(write(tmp_path, "name: &a {b: *a}\n"))[0].message


def test_all_problems_are_shown_together_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = VALID.replace("name: small", "nam: small").replace("max_new_tokens: 8", "max_new_tokens: x")
    found = problems(
        write(tmp_path, text.replace("layer_ids: [2]", "layers: [2]")), "bench.repeats=0", "verfy.threads=1"
    )
    assert [(p.location.line, p.path) for p in found] == [
        (None, "bench.repeats"),
        (None, "verfy"),
        (1, "name"),
        (1, "nam"),
        (9, "regenerate.max_new_tokens"),
        (19, "drafters.second.layers"),
    ]


@pytest.mark.parametrize(
    ("setting", "message", "path"),
    [
        ("bench.repeats", "not an assignment", ""),
        ("=3", "not an assignment", ""),
        ("a..b=3", "not an assignment", ""),
        ("bench.repeats=[1", "not a YAML value", "bench.repeats"),
        ("bench.repeats=x", "wrong type", "bench.repeats"),
        ("bench.repaets=2", "unknown key", "bench.repaets"),
        ("name.first=2", "`name` is a value, not a section", "name.first"),
        ("regenerate.train.1.kind=b", "no such entry of the list", "regenerate.train.1"),
        ("regenerate.train.x.kind=b", "no such entry of the list", "regenerate.train.x"),
        ("drafters.*.nme=2", "unknown key", "drafters.first.nme"),
    ],
)
def test_bad_setting_is_located_at_its_flag(tmp_path: Path, setting: str, message: str, path: str) -> None:
    problem = problems(write(tmp_path), setting)[0]
    assert problem.message.startswith(message)
    assert (problem.location.source, problem.location.line) == (f"--set {setting}", None)
    assert problem.path == path


def test_a_problem_reads_as_a_person_would_write_it(tmp_path: Path) -> None:
    problem = spoiled(tmp_path, "layer_ids: [1, 2]", "layer_id: [1, 2]\n  layer_ids: [1, 2]")
    assert str(problem).splitlines() == [
        f"{tmp_path}/config.yaml:11:3: capture.layer_id: unknown key",
        "    found     layer_id",
        "    expected  " + problem.expected,
        "    hint      did you mean `layer_ids`?",
    ]


@pytest.mark.parametrize(
    ("name", "expected"), [("Max-New-Tokens", "max_new_tokens"), ("tempreature", "temperature"), ("zzz", None)]
)
def test_nearest(name: str, expected: str | None) -> None:
    found = nearest(name, ["max_new_tokens", "temperature", "seed"])
    assert found == (f"did you mean `{expected}`?" if expected else "")


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("drafters.first.train.learning_rate=.inf", "Infinity"),
        ("drafters.first.train.betas=[0.9, .nan]", "NaN"),
        ("verify.near_tie=.inf", "Infinity"),
    ],
)
def test_numbers_must_be_finite(tmp_path: Path, setting: str, found: str) -> None:
    problem = only(problems(write(tmp_path), setting))
    assert (problem.found, problem.expected) == (found, "a finite number")
    assert problem.location.source == f"--set {setting}"


def test_the_last_layer_and_those_beyond_it_cannot_be_captured(tmp_path: Path) -> None:
    problem = spoiled(tmp_path, "layer_ids: [1, 2]", "layer_ids: [1, 2, 3, 9]")
    assert (problem.message, problem.found) == ("layers that cannot be captured", "[3, 9]")
    assert problem.expected.startswith("ids from 0 to 2: the target has 4 layers (random:0)")
    assert place(problem) == (11, 14)


@pytest.mark.parametrize(
    ("setting", "largest"),
    [
        ("regenerate.max_new_tokens", 4095),
        ("verify.max_new_tokens", 4095),
        ("bench.max_new_tokens", 4095),
        ("tokenize.max_length", 4096),
    ],
)
def test_what_does_not_fit_the_targets_context(tmp_path: Path, setting: str, largest: int) -> None:
    path = write(tmp_path)
    problem = only(problems(path, f"{setting}={largest + 1}"))
    assert (problem.path, problem.found, problem.expected) == (setting, str(largest + 1), f"at most {largest}")
    load_config(path, parse_overrides([f"{setting}={largest}"]))
