"""Defences that act on tokens or slots, or call a judge."""

from __future__ import annotations

import json
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
from grpo_guard.evals.studies.adaptive.off_policy import CLAIMED  # noqa: E402
from grpo_guard.evals.studies.baselines.judges import BACKEND, paper_judge, shipped  # noqa: E402
from grpo_guard.evals.studies.baselines.learning import FTIS, OffPolicy  # noqa: E402
from grpo_guard.evals.studies.baselines.plain import WholeRounds  # noqa: E402
from grpo_guard.evals.studies.baselines.spans import (  # noqa: E402
    TokenSpanGuard,
    token_ends,
    token_span,
)
from grpo_guard.evals.swarm.config import SwarmConfig  # noqa: E402
from grpo_guard.evals.swarm.experiment import Spec, build, play  # noqa: E402
from grpo_guard.evals.swarm.grpo import Reweighed, Weighted, accumulate  # noqa: E402
from grpo_guard.evals.tasks.python_maths import PythonMaths  # noqa: E402
from grpo_guard.evals.tasks.word_problems import WordProblems  # noqa: E402

SMALL = SwarmConfig(iterations=2, prompts=4, group_size=8, max_new_tokens=60)


def played(tmp_path: Path, attack: str, name: str, **settings: Any) -> dict[str, Any]:
    torch.set_num_threads(1)
    chosen = {"iterations": 2, "prompts": 4, "group_size": 8, "max_new_tokens": 60, **settings}
    return play(Spec(attack, name, SwarmConfig(**chosen)), tmp_path)


def gradient(item: Weighted, **options: Any) -> torch.Tensor:
    torch.set_num_threads(1)
    model, _ = load_bundled()
    accumulate(model, [item], 8, **options)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def by_f_tis(most_kl: float) -> Reweighed:
    found = OffPolicy(most_kl)
    return lambda weight, logprobs, part: weight * found.factors(logprobs, part)


def a_completion() -> tuple[list[int], list[int], list[float]]:
    """(prompt ids, ids, the policy's own log-probs)."""
    model, tokenizer = load_bundled()
    prompt = tokenizer.encode("Q: Ann has 2 cows.\nA:")
    ids = tokenizer.encode("<think>2 + 2 = 4 cows.</think>")
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    own = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
    return prompt, ids, own.tolist()


def test_f_tis_leaves_honest_claims_and_missing_ones_unchanged() -> None:
    prompt, ids, own = a_completion()
    plain = gradient(Weighted(prompt, ids, -1.0))
    for claimed in (None, own):
        found = gradient(Weighted(prompt, ids, -1.0, (), claimed), reweighed=by_f_tis(1.0))
        torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-6)


def test_f_tis_filters_only_negative_advantages() -> None:
    prompt, ids, own = a_completion()
    far = [one - 3.0 for one in own]  # pi is e^3 times the claimed probability
    down = gradient(Weighted(prompt, ids, -1.0, (), far), reweighed=by_f_tis(10.0))
    assert down.abs().max() == 0
    up = gradient(Weighted(prompt, ids, 1.0, (), far), reweighed=by_f_tis(10.0))
    torch.testing.assert_close(up, 2 * gradient(Weighted(prompt, ids, 1.0)), rtol=1e-3, atol=1e-6)
    kept = gradient(Weighted(prompt, ids, -1.0, (), far), reweighed=by_f_tis(1e9))
    assert kept.abs().max() > 0


@pytest.mark.parametrize("claim", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_f_tis_stays_finite_whatever_is_claimed(claim: float) -> None:
    prompt, ids, _ = a_completion()
    item = Weighted(prompt, ids, 1.0, (), [claim] * len(ids))
    assert bool(gradient(item, reweighed=by_f_tis(10.0)).isfinite().all())


@pytest.mark.slow
def test_f_tis_does_not_defend_against_text(tmp_path: Path) -> None:
    for number, attack in enumerate(("text", "lying_logprobs")):
        (tmp_path / str(number)).mkdir()
        run = played(tmp_path / str(number), attack, "f_tis")
        assert run["config"]["filter_kl"] == 0.0  # the defence's own setting, not the plan's
        assert run["rejected"]["poisoned"] == 0
    members = build(Spec("text", "f_tis", SMALL), tmp_path).members
    assert all(isinstance(member, FTIS) for member in members)


def test_lying_logprobs_weigh_poison_as_much_as_f_tis_weighs_anything() -> None:
    prompt, ids, _ = a_completion()
    lie = (CLAIMED,) * len(ids)
    lied = gradient(Weighted(prompt, ids, 1.0, (), lie), reweighed=by_f_tis(10.0))
    plain = gradient(Weighted(prompt, ids, 1.0))
    torch.testing.assert_close(lied, 2 * plain, rtol=1e-3, atol=1e-6)


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
def test_near_ties_pass_replay(tmp_path: Path) -> None:
    run = played(tmp_path, "near_ties", "homogeneous")
    assert run["rejected"] == {"honest": 0, "honest_correct": 0, "poisoned": 0, "cover": 0}


@pytest.mark.slow
def test_bundled_judge_knows_one_task(tmp_path: Path) -> None:
    run = played(tmp_path, "text", "shipped_judge")
    assert run["rejected"]["poisoned"] > 0.8 * run["submitted"]["poisoned"]
    assert run["abstained"] == 0
    with pytest.raises(ValueError, match="shipped_judge: expected the task 'word_problems'"):
        shipped(Ground(SMALL, PythonMaths(), tmp_path))


def test_judge_of_the_paper_needs_a_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = Ground(SMALL, WordProblems(), tmp_path)
    monkeypatch.delenv(BACKEND, raising=False)
    with pytest.raises(ValueError, match=f"paper_judge: .* {BACKEND}"):
        build(Spec("text", "paper_judge", SMALL), tmp_path)
    for text in ("not json", "[]"):
        monkeypatch.setenv(BACKEND, text)
        with pytest.raises(ValueError, match=f"{BACKEND}: expected"):
            paper_judge(ground)
    options = {"type": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    monkeypatch.setenv(BACKEND, json.dumps(options))
    judge = paper_judge(ground)
    assert judge.screens is None
    assert judge.mode.name == "cot"
    assert judge.rubric.name == "paper_maths"
    assert paper_judge(Ground(SMALL, PythonMaths(), tmp_path)).rubric.name == "paper_code"
