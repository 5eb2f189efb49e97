"""``status``, ``show`` and ``gc`` on a store with a target, conversations and a drafter."""

from __future__ import annotations

from pathlib import Path

from specflow.cli.work import open_work
from specflow.workflow.commit import Attempt
from specflow.workflow.store import ArtifactStore
from tests.cli.support import document, fill, specflow
from tests.config.support import write


def test_status_without_configuration(tmp_path: Path) -> None:
    keys = fill(tmp_path)
    found = document(specflow("status", "--store", tmp_path, "--json"))
    assert [(a["kind"], a["key"], a["bytes"]) for a in found["artifacts"]] == [(k, v, 10) for k, v in keys.items()]
    plain = specflow("status", "--store", tmp_path)
    assert plain.stdout.startswith(f"3 artifacts in {tmp_path}, 30 B\n")
    assert f"drafter/{keys['drafter'][:12]}" in plain.stdout
    assert "\x1b" not in plain.output


def test_status_of_a_store_that_does_not_exist(tmp_path: Path) -> None:
    result = specflow("status", "--store", tmp_path / "none")
    assert (result.exit_code, result.stdout) == (0, f"0 artifacts in {tmp_path / 'none'}, 0 B\n")


def test_status_with_configuration_says_what_would_run_and_what_is_unused(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    config = write(tmp_path)
    result = specflow("status", "--config", config, "--store", tmp_path / "store", "--json")
    assert result.exit_code == 0, result.output
    found = document(result)
    assert [a["used"] for a in found["artifacts"]] == [False, False, False]
    # The made-up target is of another code version: it does not count, and status says why.
    target = next(node for node in found["nodes"] if node["id"] == "target")
    assert target["state"] == "to run"
    assert "code changed" in target["reason"]
    text = specflow("status", "--config", config, "--store", tmp_path / "store")
    assert text.exit_code == 0
    assert "13 to run" in text.stdout


def test_status_with_settings_needs_a_configuration(tmp_path: Path) -> None:
    assert specflow("status", "--set", "a=1", "--store", tmp_path).exit_code == 2


def test_show(tmp_path: Path) -> None:
    keys = fill(tmp_path)
    result = specflow("show", keys["drafter"][:8], "--store", tmp_path)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"drafter/{keys['drafter']}"
    assert lines[1].endswith("10 B, drafter first")
    assert any(line.split() == ["tau.service", "2.25"] for line in lines)
    tree = [line.strip(" │├└─") for line in lines if "/" in line]
    assert f"conversations/{keys['conversations'][:12]}  10 B" in tree
    assert tree.count(f"target/{keys['target'][:12]}  10 B") == 2
    found = document(specflow("show", f"drafter/{keys['drafter'][:8]}", "--store", tmp_path, "--json"))
    assert found["inputs"] == {"target": [keys["target"]], "conversations": [keys["conversations"]]}
    assert found["metrics"] == {"tau": {"service": 2.25}}
    assert found["path"] == str(tmp_path / "drafter" / keys["drafter"])


def test_show_verifies_every_byte(tmp_path: Path) -> None:
    keys = fill(tmp_path)
    assert specflow("show", keys["target"], "--store", tmp_path, "--verify").exit_code == 0
    (tmp_path / "target" / keys["target"] / "data.txt").write_text("0123456780")
    result = specflow("show", keys["target"], "--store", tmp_path, "--verify")
    assert result.exit_code == 1
    assert "damaged: data.txt sha256 differs" in result.stdout


def test_show_what_does_not_exist(tmp_path: Path) -> None:
    fill(tmp_path)
    missing = specflow("show", "zz", "--store", tmp_path)
    assert missing.exit_code == 2
    assert "no artifact starts with 'zz'" in missing.stderr
    ambiguous = specflow("show", "", "--store", tmp_path)
    assert ambiguous.exit_code == 2
    assert "names 3 artifacts" in ambiguous.stderr


def test_gc_removes_what_no_flow_reaches(tmp_path: Path) -> None:
    store = tmp_path / "store"
    keys = fill(store)
    config = write(tmp_path)
    dry = specflow("gc", "--config", config, "--store", store, "--dry-run", "--json")
    assert dry.exit_code == 0, dry.output
    assert {entry["name"] for entry in document(dry)["removed"]} == {f"{kind}/{key}" for kind, key in keys.items()}
    assert document(dry)["bytes"] > 30
    assert all((store / kind / key).is_dir() for kind, key in keys.items())
    done = specflow("gc", "--config", config, "--store", store, "--yes")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].startswith("removed: 3")
    assert not any((store / kind / key).exists() for kind, key in keys.items())


def test_gc_with_a_wrong_configuration_removes_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    keys = fill(store)
    config = write(tmp_path)
    config.write_text("name: x\n")
    assert specflow("gc", "--config", config, "--store", store, "--yes").exit_code == 2
    assert specflow("gc", "--store", store, "--yes").exit_code == 2
    assert all((store / kind / key).is_dir() for kind, key in keys.items())


def test_gc_removes_nothing_unasked(tmp_path: Path) -> None:
    store = tmp_path / "store"
    keys = fill(store)
    config = write(tmp_path)
    for flags in ([], ["--json"]):
        refused = specflow("gc", "--config", config, "--store", store, *flags)
        assert refused.exit_code == 2
        assert "--yes" in refused.output
        assert all((store / kind / key).is_dir() for kind, key in keys.items())
    done = specflow("gc", "--config", config, "--store", store, "--yes", "--json")
    assert (done.exit_code, len(document(done)["removed"])) == (0, 3)


def test_status_does_not_claim_to_have_verified(tmp_path: Path) -> None:
    config = write(tmp_path)
    store = ArtifactStore(tmp_path / "store")
    node = open_work("full-pipeline", str(config), store=store.root).plan().node("target")
    attempt = Attempt(store, node.recipe)
    attempt.prepare()
    (attempt.output / "data.txt").write_text("0123456789")
    attempt.commit({})

    def reason(command: list[str]) -> str:
        result = specflow(*command, "--config", config, "--store", store.root, "--json")
        found = next(entry for entry in document(result)["nodes"] if entry["id"] == "target")
        assert found["state"] == "cached"
        return str(found["reason"])

    assert reason(["status"]) == "made"
    assert reason(["plan", "full-pipeline"]) == "made and verified"
