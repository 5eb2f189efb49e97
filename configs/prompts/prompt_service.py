"""``service``: messages of customers of an appliance shop, to be recorded, classified or answered in a fixed form."""

from __future__ import annotations

import random
import re
from typing import Any

from prompt_fillers import Message, Split, capital, commas, deck, interleave, lines, load, words

TASKS = ("record", "classify", "reply")
PER_TASK: dict[Split, int] = {"train": 400, "heldout": 50}
WANTS = ("repair", "replacement", "refund", "advice")


def tables(split: Split) -> dict[str, tuple[str, ...]]:
    """Every filler of a split by kind; no entry of one split occurs in the other."""
    raw = load("service")[split]
    return {
        "frames": lines(raw["frames"]),
        "first_names": words(raw["first_names"]),
        "last_names": words(raw["last_names"]),
        "brands": words(raw["brands"]),
        "types": tuple(entry for text in raw["types"].values() for entry in commas(text)),
        "problems": tuple(entry for text in raw["problems"].values() for entry in lines(text)),
        "wants": tuple(entry for want in WANTS for entry in lines(raw[f"want_{want}"])),
        "typos": tuple(raw["typos"].values()),
        "orders": tuple(str(number) for number in range(raw["orders"][0], raw["orders"][1] + 1)),
    }


def _tone(text: str, *, rng: random.Random, typos: dict[str, str]) -> str:
    """Leave most messages as they are; make some careless, some loud, some with one typing error."""
    draw = rng.random()
    if draw < 0.12:
        return (text[:1].lower() + text[1:]).rstrip(".")
    if draw < 0.22:
        return re.sub(r"\.$", "!!", text)
    if draw < 0.32:
        present = [word for word in typos if re.search(rf"\b{word}\b", text)]
        if present:
            wrong = rng.choice(present)
            return re.sub(rf"\b{wrong}\b", typos[wrong], text, count=1)
    return text


def _messages_of_customers(split: Split, *, count: int, rng: random.Random) -> list[str]:
    """``count`` distinct messages; frames, names, brands and wishes are dealt evenly."""
    raw = load("service")[split]
    table = tables(split)
    types = {group: commas(text) for group, text in raw["types"].items()}
    problems = {group: lines(text) for group, text in raw["problems"].items()}
    pairs = [f"{group}|{kind}" for group, kinds in types.items() for kind in kinds]
    frames, products, brands = deck(rng, table["frames"]), deck(rng, pairs), deck(rng, table["brands"])
    firsts, lasts = deck(rng, table["first_names"]), deck(rng, table["last_names"])
    wants = {want: deck(rng, lines(raw[f"want_{want}"])) for want in WANTS}
    kinds = deck(rng, WANTS)
    orders = iter(rng.sample([o for o in table["orders"] if o != "2041"], count))
    found: dict[str, None] = {}
    while len(found) < count:
        group, kind = next(products).split("|")
        text = next(frames).format(
            item=f"{next(brands)} {kind}",
            problem=rng.choice(problems["any"] if rng.random() < 0.3 else problems[group]),
            want=next(wants[next(kinds)]),
        )
        text = _tone(capital(text), rng=rng, typos=raw["typos"])
        found[f"{next(firsts)} {next(lasts)}, order {next(orders)}: {text}"] = None
    return list(found)


def rows(split: Split) -> list[dict[str, Any]]:
    """The rows of ``service-<split>.jsonl``."""
    tasks = load("service")["tasks"]
    rng = random.Random(f"service-{split}")
    texts = _messages_of_customers(split, count=PER_TASK[split] * len(TASKS), rng=rng)
    groups: dict[str, list[list[Message]]] = {}
    for number, task in enumerate(TASKS):
        form = tasks[task]
        head: list[Message] = [
            {"role": "system", "content": form["system"].strip()},
            {"role": "user", "content": tasks["example"]},
            {"role": "assistant", "content": form["answer"].strip()},
        ]
        own = texts[number :: len(TASKS)]
        groups[task] = [[*head, {"role": "user", "content": text}] for text in own]
    return interleave(groups, prefix=f"service-{split}")
