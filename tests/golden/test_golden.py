"""Today's results match the golden files; `tests.golden.record` compares all, this a quick part."""

import json

import pytest

from tests.golden.record import CORPORA, golden, verdicts
from tests.golden.settled import settled_grid

BATCHES = 3


def test_settled_rewards_match_the_golden_file():
    assert [json.dumps(row) for row in settled_grid()] == golden("settled")


@pytest.mark.slow
@pytest.mark.parametrize("corpus", CORPORA)
def test_verdicts_match_the_golden_files(corpus):
    try:
        batches = CORPORA[corpus]()[:BATCHES]
    except FileNotFoundError as error:
        pytest.skip(f"no {error.filename}")
    size = sum(map(len, batches))
    expected = [line for line in golden(corpus) if json.loads(line)[1] < size]
    assert [json.dumps(row) for row in verdicts(batches)] == expected
