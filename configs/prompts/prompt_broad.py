"""``broad``: short prompts of six kinds, for a drafter of no particular workload."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from prompt_fillers import Message, Split, capital, deck, interleave, lines, load, words

PER_KIND: dict[Split, int] = {"train": 150, "heldout": 20}
SYSTEM: Message = {"role": "system", "content": "You are a helpful assistant."}
Table = dict[str, Any]
Maker = Callable[[Table, random.Random], Iterator[str]]


def _question(table: Table, rng: random.Random) -> Iterator[str]:
    own = table["question"]
    asked = [
        *lines(own["why"]),
        *(f"What is {term}?" for term in lines(own["term"])),
        *(f"What is the difference between {pair}?" for pair in lines(own["pair"])),
    ]
    rng.shuffle(asked)
    endings = deck(rng, lines(own["endings"]))
    for question in asked:
        yield f"{question} {next(endings)}"


def _writing(table: Table, rng: random.Random) -> Iterator[str]:
    forms = deck(rng, lines(table["writing"]["forms"]))
    for subject in deck(rng, lines(table["writing"]["subjects"])):
        yield next(forms).format(subject=subject)


def _summary(table: Table, rng: random.Random) -> Iterator[str]:
    own = table["summary"]
    part = {key: deck(rng, lines(own[key])) for key in ("asks", "places", "openings", "changes", "endings")}
    for town in deck(rng, words(own["towns"])):
        opening = next(part["openings"]).format(place=next(part["places"]), town=town)
        yield f"{next(part['asks'])} {opening} {next(part['changes'])} {next(part['endings'])}"


def sources(split: Split) -> Table:
    """The fillers of one split, and the ways of asking, which both splits share, under the same kinds."""
    own, shared = load(f"broad-{split}"), load("broad-shared")
    return own | {kind: shared[kind] | own[kind] for kind in MAKERS}


def numbers(table: Table, *, low: int, high: int) -> list[int]:
    """Numbers of the stories of one split: the splits take different remainders modulo four."""
    return [n for n in range(low, high) if n % 4 in table["numbers_modulo_four"]]


def _arithmetic(table: Table, rng: random.Random) -> Iterator[str]:
    names = deck(rng, words(table["first_names"]))
    endings = deck(rng, lines(table["arithmetic"]["endings"]))
    small = numbers(table, low=5, high=40)
    big = numbers(table, low=42, high=160)
    for story in deck(rng, lines(table["arithmetic"]["stories"])):
        first, second = rng.sample(small, 2)
        factor = rng.choice(table["factors"])
        text = story.format(
            name=next(names), big=rng.choice(big), small=first, other=second, factor=factor, product=factor * second
        )
        yield f"{text} {next(endings)}"


def _code(table: Table, rng: random.Random) -> Iterator[str]:
    own = table["code"]
    quantities, collections = lines(own["quantities"]), lines(own["collections"])
    tasks = [*lines(own["tasks"]), *(f"returns {q} of {c}" for q in quantities for c in collections)]
    rng.shuffle(tasks)
    asks = deck(rng, lines(own["asks"]))
    for task in tasks:
        yield next(asks).format(task=task)


def dates(table: Table) -> list[str]:
    """Days of the months that belong to one split."""
    low, high = table["extraction"]["days"]
    return [f"{day} {month}" for month in words(table["extraction"]["months"]) for day in range(low, high + 1)]


def times(table: Table) -> list[str]:
    """Times of the day: the splits take different minutes of the hour."""
    return [f"{hour}:{minute}" for hour in range(9, 21) for minute in table["extraction"]["minutes"]]


def _extraction(table: Table, rng: random.Random) -> Iterator[str]:
    own = table["extraction"]
    part = {key: deck(rng, lines(own[key])) for key in ("asks", "events", "places")}
    for frame in deck(rng, lines(own["notices"])):
        date, time = rng.choice(dates(table)), rng.choice(times(table))
        notice = frame.format(event=next(part["events"]), place=next(part["places"]), date=date, time=time)
        yield f"{next(part['asks'])} {capital(notice)}"


MAKERS: dict[str, Maker] = {
    "question": _question,
    "writing": _writing,
    "summary": _summary,
    "arithmetic": _arithmetic,
    "code": _code,
    "extraction": _extraction,
}


def tables(split: Split) -> dict[str, tuple[str, ...]]:
    """Every filler of a split by kind; no entry of one split occurs in the other."""
    table = load(f"broad-{split}")
    found = {"first_names": words(table["first_names"]), "dates": tuple(dates(table)), "times": tuple(times(table))}
    found["numbers"] = tuple(str(n) for n in numbers(table, low=5, high=160))
    found["factors"] = tuple(str(n) for n in table["factors"])
    found["towns"] = words(table["summary"]["towns"])
    for kind in MAKERS:
        texts = {key: lines(text) for key, text in table[kind].items() if isinstance(text, str) and "\n" in text}
        found |= {f"{kind}.{key}": entries for key, entries in texts.items() if key != "towns"}
    return found


def _example(own: Table) -> list[Message]:
    """The worked example of a kind: the form of its answers is shown, not described."""
    ask, answer = own["example"]["ask"], own["example"]["answer"]
    return [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]


def rows(split: Split) -> list[dict[str, Any]]:
    """The rows of ``broad-<split>.jsonl``."""
    table = sources(split)
    groups: dict[str, list[list[Message]]] = {}
    for kind, maker in MAKERS.items():
        made: dict[str, None] = {}
        for text in maker(table, random.Random(f"broad-{split}-{kind}")):
            made[text] = None
            if len(made) == PER_KIND[split]:
                break
        head = [SYSTEM, *_example(table[kind])]
        groups[kind] = [[*head, {"role": "user", "content": text}] for text in made]
    return interleave(groups, prefix=f"broad-{split}")
