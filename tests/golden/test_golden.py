"""Today's results are the recorded ones: a digest for each corpus and verifier."""

import json

import pytest

from grpo_guard.content.kinds import RULES
from tests.golden import record

KINDS = {rule.name: set(rule.KINDS) for rule in RULES}
# Kinds of findings outside the tables: they are decided elsewhere, and cannot be overridden.
OTHER = {"malformed", "overlong", "uninformative", "frequent_finding", "not_applicable"}
LARGE = ("modern_math", "modern_min", "modern_oly")


@pytest.mark.parametrize(
    "corpus",
    [
        "settled",
        *(pytest.param(c, marks=[pytest.mark.slow] * (c in LARGE)) for c in record.CORPORA),
    ],
)
def test_outcomes_are_the_recorded_ones(corpus):
    try:
        rows = record.rows_of(corpus)
    except FileNotFoundError as error:
        pytest.skip(f"no {error.filename}")
    differing = record.differing(corpus, rows)
    assert not differing, "\n".join([*differing, f"rows: {record.how_to_see(corpus)}"])
    for name in KINDS.keys() & rows.keys():
        found = {kind for row in rows[name] for kind, *_ in json.loads(row)[-1]}
        assert found <= KINDS[name] | OTHER, f"{name}: not in its table of severities"


def test_other_outcomes_are_named_with_corpus_verifier_and_rows(tmp_path, capsys):
    dump = tmp_path / "rows.json"
    assert record.main(["bundled", "--dump", str(dump)]) == 0
    rows = json.loads(dump.read_text())
    first = rows["bundled"]["arithmetic"].pop(0)
    (line,) = record.differing("bundled", rows["bundled"])
    assert line.startswith("arithmetic on bundled: 15 rows")
    dump.write_text(json.dumps(rows))
    capsys.readouterr()
    assert record.main(["bundled", "--compare", str(dump)]) == 1
    shown = capsys.readouterr().out
    assert shown == f"arithmetic on bundled: 1 rows differ\n  + {first}\n1 rows differ\n"
