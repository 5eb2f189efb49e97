"""``drafters``, ``promote``, ``rollback`` and ``history`` on a store with two exports."""

from __future__ import annotations

from pathlib import Path

from specflow.workflow.store import ArtifactStore
from tests.cli.support import document, specflow
from tests.config.support import write
from tests.workflow.test_promotion import A, B, add_drafter, served


def filled(root: Path) -> ArtifactStore:
    store = ArtifactStore(root / "artifacts")
    for drafter in (A, B):
        add_drafter(store, drafter)
    return store


def test_promote_roll_back_and_list(tmp_path: Path) -> None:
    store = filled(tmp_path)
    common = ("--store", store.root, "--service", "chat")
    assert "no drafter is registered" in specflow("drafters", "--store", store.root).stdout
    done = specflow("promote", A[:6], *common, "--reason", "first of all")
    assert (done.exit_code, done.stdout) == (
        0, f"chat: drafter {A[:12]} is promoted: {store.root / 'promoted' / 'chat'}\n",
    )  # fmt: skip
    assert document(specflow("promote", B[:6], *common, "--json"))["path"] == str(store.root / "promoted" / "chat")
    assert served(store) == "b"
    listed = document(specflow("drafters", *common, "--json"))["drafters"]
    assert [(entry["drafter"], entry["state"]) for entry in listed] == [(A, "retired"), (B, "promoted")]
    assert listed[1]["path"] == str(store.root / "promoted" / "chat")
    back = specflow("rollback", *common, "--reason", "worse")
    assert back.stdout == f"chat: drafter {B[:12]} is retired, drafter {A[:12]} is promoted again\n"
    text = specflow("drafters", "--store", store.root).stdout
    assert "worse" in text
    assert text.splitlines()[0].split() == ["service", "drafter", "name", "state", "since", "why", "tok/s", "tau"]
    events = specflow("drafters", "--store", store.root, "--events").stdout.splitlines()
    assert [line.split()[3] for line in events] == ["promoted", "promoted", "rolled"]
    assert events[0].endswith("first of all")


def test_what_the_registry_refuses_is_bad_input(tmp_path: Path) -> None:
    store = filled(tmp_path)
    for words in (("promote", "zz"), ("rollback",)):
        refused = specflow(*words, "--store", store.root, "--json")
        assert refused.exit_code == 2
        assert document(refused)["errors"][0]["message"]
    assert not (store.root / "promoted").exists()


def test_the_service_is_that_of_the_configuration(tmp_path: Path) -> None:
    store = filled(tmp_path)
    config = write(tmp_path)
    config.write_text(config.read_text() + "gate: {service: code}\n")
    specflow("promote", A[:6], "--config", config, "--store", store.root)
    assert [e["service"] for e in document(specflow("drafters", "--store", store.root, "--json"))["drafters"]] == [
        "code"
    ]


def test_history_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    store = filled(tmp_path)
    specflow("promote", A[:6], "--store", store.root, "--service", "chat")
    done = document(specflow("history", "--store", store.root, "--output", tmp_path / "page.html", "--json"))
    assert done["page"] == str(tmp_path / "page.html")
    assert [node["stage"] for node in done["lineages"][0]["nodes"]] == ["drafter", "export"]
    assert (tmp_path / "page.html").read_text().count("<h2>Lineage") == 1
    missing = specflow("history", "--store", tmp_path / "none")
    assert (missing.exit_code, "no such artifact store" in missing.stderr) == (2, True)


def test_a_promoted_drafter_is_no_artifact_of_its_own(tmp_path: Path) -> None:
    store = filled(tmp_path)
    specflow("promote", A[:6], "--store", store.root, "--service", "chat")
    assert {kind for kind, _ in store.pairs()} == {"drafter", "export"}
    removed = document(specflow("gc", "--config", write(tmp_path), "--store", store.root, "--yes", "--json"))["removed"]
    assert {entry["name"] for entry in removed} == {f"drafter/{B}", f"export/e{B[1:]}"}
    assert served(store) == "a"
