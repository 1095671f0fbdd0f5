"""Defences that act on tokens or slots, or call a judge."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier  # noqa: E402
from grpo_guard.content.screens.verifier import ScreensVerifier  # noqa: E402
from grpo_guard.core.completion import Completion  # noqa: E402
from grpo_guard.core.ensemble import AllOf  # noqa: E402
from grpo_guard.evals.defences.base import Ground, counting  # noqa: E402
from grpo_guard.evals.defences.registry import AssignedPrompts  # noqa: E402
from grpo_guard.evals.policies.bundled import load_bundled  # noqa: E402
from grpo_guard.evals.studies.baselines.registry import WholeRounds, shipped  # noqa: E402
from grpo_guard.evals.studies.baselines.spans import (  # noqa: E402
    TokenSpanGuard,
    token_ends,
    token_span,
)
from grpo_guard.evals.swarm.config import SwarmConfig  # noqa: E402
from grpo_guard.evals.swarm.experiment import Spec, play  # noqa: E402
from grpo_guard.evals.tasks.python_maths import PythonMaths  # noqa: E402

SMALL = SwarmConfig(iterations=2, prompts=4, group_size=8, max_new_tokens=60)


def played(tmp_path: Path, attack: str, name: str, **settings: Any) -> dict[str, Any]:
    torch.set_num_threads(1)
    chosen = {"iterations": 2, "prompts": 4, "group_size": 8, "max_new_tokens": 60, **settings}
    return play(Spec(attack, name, SwarmConfig(**chosen)), tmp_path)


def test_character_spans_become_token_spans() -> None:
    _, tokenizer = load_bundled()
    text = "<think>2 + 2 = 5 cows. Then 4 + 3 = 7 cows.</think><answer>7 cows</answer>\u200b"
    ids = tokenizer.encode(text)
    batch = [
        Completion("Q: Ann has 2 cows.\nA:", text, completion_ids=tuple(ids), reference="7"),
        Completion("Q: Ann has 2 cows.\nA:", "", completion_ids=(), reference="7"),
    ]
    verifier = AllOf(ScreensVerifier(), ArithmeticVerifier())
    guard = TokenSpanGuard(counting(verifier, tokenizer), tokenizer)
    found, empty = guard.review(batch).verdicts
    assert found.rejected
    named = {
        finding.kind: tokenizer.decode(ids[slice(*finding.token_span)])
        for finding in found.findings
        if finding.token_span is not None
    }
    assert "5" in named["wrong_equation"]
    assert len(named["wrong_equation"]) <= 3
    assert "\u200b" in named["invisible"]
    assert empty.rejected
    assert all(finding.token_span is None for finding in empty.findings)


def test_token_ends_increase_to_the_end_of_the_text() -> None:
    _, tokenizer = load_bundled()
    for text in (
        "<think>12 + 7</think>",
        "größer 你好 😀 cows",
        "",
        "\ud800".encode("utf-8", "replace").decode(),
    ):
        ids = tokenizer.encode(text)
        ends = token_ends(tokenizer, ids)
        assert ends == sorted(ends)
        assert (ends[-1] if ends else 0) == len(tokenizer.decode(ids))
    assert token_span((2, 3), [1, 4, 9]) == (1, 2)
    assert token_span((0, 5), [1, 4, 9]) == (0, 3)
    assert token_span((9, 12), [1, 4, 9]) is None
    assert token_span((1, 2), [1, 1, 2, 3]) == (1, 3)
    assert token_span((0, 1), []) is None


@pytest.mark.slow
def test_masking_masks_the_spans_of_content_findings(tmp_path: Path) -> None:
    run = played(tmp_path, "math", "mask_content_span", setting="vertical")
    assert run["rejected"]["poisoned"] == run["submitted"]["poisoned"] > 0


def test_node_answers_only_assigned_prompts() -> None:
    verifier = AssignedPrompts(["a", "b"], 2)
    batch = [
        Completion("p1", "t", node="a"), Completion("p3", "t", node="b"),
        Completion("p1", "t", node="b"), Completion("p9", "t", node="b"),
        Completion("p1", "t"), Completion("p5", "t", node="b"),
    ]  # fmt: skip
    assert all(verdict.rejected for verdict in verifier.verify(batch))
    verifier.begin_round(0, ["p1", "p2", "p3", "p4", "p5"])
    assert [v.accepted for v in verifier.verify(batch)] == [True, True, False, False, False, False]


def test_round_with_empty_slots_earns_nothing() -> None:
    verifier = WholeRounds(2)
    batch = [Completion("p", "t", node=node) for node in ("a", "a", "b")]
    assert [v.accepted for v in verifier.verify(batch)] == [True, True, False]
    assert verifier.verify([]) == []
    with pytest.raises(ValueError, match="owed"):
        WholeRounds(0)


@pytest.mark.slow
def test_grinding_and_withholding_meet_their_defences(tmp_path: Path) -> None:
    """Each attack passes while its choice is open, and fails under the defence that closes it."""
    for attack, setting, open_to, closed in (
        ("seed_grinding", "vertical", "own_prompts", "homogeneous"),
        ("withholding", "horizontal", "homogeneous", "whole_rounds"),
    ):
        for name, rejects in ((open_to, False), (closed, True)):
            folder = tmp_path / f"{attack}-{name}"
            folder.mkdir()
            run = played(folder, attack, name, setting=setting)
            sent = run["submitted"]["poisoned"] + run["submitted"]["cover"]
            refused = run["rejected"]["poisoned"] + run["rejected"]["cover"]
            assert sent > 0
            # In a round in which every forced sample suits the attacker, nothing is withheld.
            assert (refused > 0) is rejects, (attack, name, refused, sent)
            assert attack != "seed_grinding" or not rejects or refused == sent
            assert run["rejected"]["honest"] == 0


@pytest.mark.slow
def test_bundled_judge_knows_one_task(tmp_path: Path) -> None:
    run = played(tmp_path, "text", "shipped_judge")
    assert run["rejected"]["poisoned"] > 0.8 * run["submitted"]["poisoned"]
    assert run["abstained"] == 0
    with pytest.raises(ValueError, match="shipped_judge: expected the task 'word_problems'"):
        shipped(Ground(SMALL, PythonMaths(), tmp_path))
