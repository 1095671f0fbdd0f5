"""``--fail-under`` and ``--max-honest`` on the summary of any experiment."""

import pytest
import typer

from grpo_guard.evals.limits import end_where_broken
from grpo_guard.evals.results import Summary
from grpo_guard.evals.stats import Rate


def row(attack: str, metric: str, count: int, total: int) -> Summary:
    return Summary(attack=attack, defence="mine", metric=metric, **Rate(count, total).row())


@pytest.mark.parametrize(
    "fine",
    [
        row("text", "rejected", 96, 100),
        row("text", "rejected_poisoned", 95, 100),
        row("honest", "rejected", 1, 100),
        row("text", "rejected_honest_correct", 1, 100),
        row("silent", "rejected_poisoned", 0, 0),  # no node sends poison
        row("control:empty", "rejected", 0, 2),
        row("text", "rejected_honest", 50, 100),
        row("text", "asr_end_of_completions", 100, 100),
    ],
)
def test_summary_within_limits_passes(fine: Summary) -> None:
    assert end_where_broken([fine], fail_under=0.95, max_honest=0.01) is None, "no typer.Exit"


@pytest.mark.parametrize(
    ("beyond", "said"),
    [
        (row("text", "rejected", 94, 100), "mine, text: expected at least 95.0 % rejected, got 94"),
        (
            row("text", "rejected_poisoned", 0, 8),
            "text: expected at least 95.0 % rejected, got 0",
        ),
        (row("text", "rejected", 0, 0), "mine, text: expected at least 95.0 % rejected, got 0 / 0"),
        (row("honest", "rejected", 2, 100), "mine, honest: expected at most 1.0 % rejected, got 2"),
        (row("text", "rejected_honest_correct", 2, 100), "right honest answers under text: expect"),
        (row("none", "rejected_honest_correct", 0, 0), "under none: expected at most 1.0 % rejec"),
    ],
)
def test_summary_beyond_limits_exits_1_with_counts(
    beyond: Summary, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        end_where_broken([beyond], fail_under=0.95, max_honest=0.01)
    assert ended.value.exit_code == 1
    assert said in capsys.readouterr().err
    end_where_broken([beyond], fail_under=None, max_honest=None)


def test_poison_that_earns_nothing_counts_as_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    rate = {"rejected": 1, "abstained": 1, "earns_nothing": 6}
    beyond = row("math", "rejected", 1, 10).model_copy(update=rate)
    with pytest.raises(typer.Exit):
        end_where_broken([beyond], fail_under=0.2, max_honest=None)
    said = capsys.readouterr().err
    assert "at least 20.0 % rejected, got 1 / 10" in said
    assert said.rstrip().endswith("; 6 of the 8 accepted earn nothing")
