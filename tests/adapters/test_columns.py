"""A data set's columns reach a reward function whatever they are called."""

import pytest

from grpo_guard import Guard
from tests.helpers.words import Words

COLUMNS = {"found": 1, "result": 2, "look": 3, "review": 4, "guard": 5}
GIVEN = {
    "areal": {"prompt": "?", "completions": "2", "prompt_ids": [1], "completion_ids": [2]},
    "verl": {"data_source": "sums", "solution_str": "2", "ground_truth": "2", "extra_info": None},
}


@pytest.mark.parametrize("framework", GIVEN)
def test_columns_may_have_any_name(framework):
    seen = []

    def reward(**given):
        seen.append({name: given.get(name) for name in COLUMNS})
        return 1.0

    guarded = Guard(Words())(reward, framework=framework)
    assert guarded(**GIVEN[framework], **COLUMNS) == 1.0
    assert seen == [COLUMNS]
