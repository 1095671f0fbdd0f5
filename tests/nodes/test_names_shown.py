"""Names of nodes: shown the same way everywhere, and known again as they are shown."""

import sqlite3
from contextlib import closing

import pytest
from typer.testing import CliRunner

from grpo_guard.cli.main import app
from grpo_guard.core.quoting import shown_name
from grpo_guard.nodes.intake import name_bytes, printable
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.release import stored_name
from grpo_guard.nodes.schema import LedgerError
from tests.nodes.swarm_ledger import one_in, played

NAMES = {
    "Zoë": "Zoë",
    "李雷": "李雷",
    "Алиса": "Алиса",
    "b\u043eb": "b\\u043eb",  # a Cyrillic letter among Latin ones
    "a\u3164\u202eb\x1b[2J": "a\\u3164\\u202eb\\x1b[2J",
    "b\ufe0fc": "b\\ufe0fc",
    "a\u217cice": "a\\u217cice",  # a Roman numeral
    "node\u20117": "node\\u20117",  # a hyphen
    "zoe\u0301": "zoe\\u0301",  # an accent apart from its letter
    "ann\u20241": "ann\\u20241",  # a leader in place of a point
    "日本，語 하나 हिन्दी": "日本，語 하나 हिन्दी",
}


def test_blanks_that_a_table_hides_are_escaped():
    assert printable(b" bob  x ") == "\\x20bob \\x20x\\x20"


def test_a_name_cannot_spell_out_the_escapes_of_another(tmp_path):
    real, fake = "Алиса-gpu", r"\u0410\u043b\u0438\u0441\u0430-gpu"
    assert printable(name_bytes(real)) == fake
    assert printable(name_bytes(fake)) == fake.replace("\\", "\\\\")
    ledger = EvidenceLedger(tmp_path / "run.sqlite")
    batch, verdicts, *_ = played(0)
    renamed = dict(zip(("ann", "mal"), (real, fake), strict=True))
    ledger.record([c.with_labels(node=renamed.get(c.node, c.node)) for c in batch], verdicts)
    ledger.close()
    with closing(sqlite3.connect(ledger.path)) as connection:
        for name in (real, fake):
            shown = printable(name_bytes(name))
            assert stored_name(connection, ledger.path, shown) == name_bytes(name)


def test_a_name_with_a_backslash_is_known_as_typed_and_as_shown(tmp_path):
    ledger = EvidenceLedger(tmp_path / "run.sqlite")
    batch, verdicts, *_ = played(0)
    ledger.record([c.with_labels(node=f"DOMAIN\\{c.node}") for c in batch], verdicts)
    ledger.close()
    with closing(sqlite3.connect(ledger.path)) as connection:
        for given in ("DOMAIN\\ann", "DOMAIN\\\\ann"):
            assert stored_name(connection, ledger.path, given) == b"DOMAIN\\ann"


def test_a_long_name_is_not_known_by_its_beginning(tmp_path):
    long = "https://worker.example.org/" + "x" * 80
    ledger = EvidenceLedger(tmp_path / "run.sqlite")
    batch, verdicts, *_ = played(0)
    renamed = dict(zip(("ann", "mal"), (f"{long}-2", f"{long}-1"), strict=True))
    ledger.record([c.with_labels(node=renamed.get(c.node, c.node)) for c in batch], verdicts)
    ledger.close()
    with closing(sqlite3.connect(ledger.path)) as connection, pytest.raises(LedgerError):
        stored_name(connection, ledger.path, shown_name(f"{long}-2")[1:-1])


@pytest.mark.parametrize(("name", "seen"), NAMES.items())
def test_letters_are_kept_and_what_cannot_be_seen_is_escaped(name, seen):
    assert shown_name(name) == f"'{seen}'"
    assert printable(name_bytes(name)) == seen


def test_a_quote_in_a_name_does_not_end_it():
    assert shown_name("bob' is released; 'x") == "\"bob' is released; 'x\""
    assert len(shown_name("y" * 300)) == 80


@pytest.fixture
def path(tmp_path):
    ledger = EvidenceLedger(tmp_path / "run.sqlite")
    for t in range(12):
        batch, verdicts, *_ = played(t, one_in(6))
        renamed = dict(zip(("ann", "mal"), ("Zoë", "李雷\u202e"), strict=True))
        batch = [c.with_labels(node=renamed.get(c.node, c.node)) for c in batch]
        ledger.record(batch, verdicts, round=t)
    ledger.close()
    return ledger.path


def ledger(*words):
    return CliRunner().invoke(app, ["ledger", *map(str, words)], env={"COLUMNS": "160"})


def test_a_name_can_be_copied_from_any_message(path):
    assert "Zoë" in ledger("show", path).stdout
    assert "李雷\\u202e" in ledger("show", path).stdout
    for name in ("Zoë", "李雷\\u202e", "李雷\u202e"):
        assert ledger("show", path, "--node", name).exit_code == 0, name
        said = ledger("release", path, name)
        assert said.exit_code == 0, said.output
    assert "released 'Zoë'" in ledger("release", path, "Zoë").stdout


@pytest.mark.parametrize(("typed", "meant"), [("Zoe", "Zoë"), ("zoë", "Zoë"), ("李雪", "李雷")])
def test_a_name_near_the_typed_one_is_suggested(path, typed, meant):
    said = ledger("release", path, typed)
    assert said.exit_code == 2
    assert f"got '{typed}'; did you mean '{meant}" in said.output


def test_phrases_are_announced_only_if_there_are_any(path):
    assert "recurrence" not in ledger("show", path).stdout
