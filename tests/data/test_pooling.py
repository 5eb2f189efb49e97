"""Documents of several slices: held-out ones are trained on nowhere, ids are unique, order is that of the slices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specflow.data.documents import TokenDocument
from specflow.data.pooling import UNUSED, Pool, counts


def document(prompt: int, split: str, *, answer: int = 9, name: str = "x") -> TokenDocument:
    ids = [prompt, answer]
    return TokenDocument(id=name, split=split, kind="a", ids=ids, supervised=[False, True], prompt_length=1)


SLICES = st.lists(
    st.lists(
        st.builds(
            document,
            st.integers(0, 4),
            st.sampled_from(["train", "heldout"]),
            answer=st.integers(5, 6),
            name=st.sampled_from("pq"),
        ),
        max_size=6,
    ),
    max_size=5,
)


@given(SLICES, st.none() | st.integers(1, 6))
def test_no_prompt_is_held_out_and_trained_on(slices: list[list[TokenDocument]], newest: int | None) -> None:
    found = list(Pool(slices, heldout_newest=newest).documents())
    given = [d for documents in slices for d in documents]
    assert [d.ids for d in found] == [d.ids for d in given], "every document keeps its place"
    assert len({d.id for d in found}) == len(found)
    heldout = {d.ids[0] for d in given if d.split == "heldout"}
    number = [i for i, documents in enumerate(slices) for _ in documents]
    for before, after, place in zip(given, found, number, strict=True):
        if before.split == "train":
            assert after.split == (UNUSED if before.ids[0] in heldout else "train")
        else:
            old = newest is not None and place < len(slices) - newest
            assert after.split == (UNUSED if old else "heldout")
    assert sum(counts(found).values()) == len(found)


def test_a_repeated_id_is_told_apart_by_its_slice() -> None:
    slices = [[document(1, "train", name="a"), document(2, "train", name="a@1")], [document(3, "train", name="a")] * 2]
    assert [d.id for d in Pool(slices).documents()] == ["a", "a@1", "a@1.2", "a@1.3"]
