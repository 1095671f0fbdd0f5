"""Presets that score a share: what is scored, what is still checked in full, what slips through."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from grpo_guard import AllOf, Completion, Guard, LogProbBoundVerifier, presets
from grpo_guard.config import ConfigError, GuardConfig
from grpo_guard.content.arithmetic.verifier import FalseSumsVerifier
from grpo_guard.core.verdict import NOT_CHECKED, Verdict
from grpo_guard.evals.defences.base import Ground
from grpo_guard.evals.defences.own import GuardFile
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.members import Peer, VerifierGuard
from grpo_guard.evals.tasks.word_problems import WordProblems
from grpo_guard.guard.spot_checks import SpotCheck
from grpo_guard.logprob.form import FormVerifier
from tests.logprob import coin_swarm
from tests.logprob.bundled_policy import SPEC, honest, policy, with_text

KEY = b"a key of tests"


@cache
def free(n: int) -> tuple[Completion, ...]:
    """Honest completions without a false sum, which the preset would leave out for any node."""
    rows = honest(2 * n)
    verdicts = FalseSumsVerifier().verify(rows)
    return tuple(c for c, v in zip(rows, verdicts, strict=True) if v.accepted)[:n]


def of(node: str, completions: Sequence[Completion]) -> list[Completion]:
    return [replace(c, node=node, round=0) for c in completions]


def guard(share: float, folder: Path, **options: object) -> Guard:
    return presets.same_weights(*policy(), SPEC, state=folder, share=share, key=KEY, **options)


def settled(share: float, folder: Path) -> Guard:
    """A guard that knows both nodes: 256 completions of each passed a check."""
    made = guard(share, folder)
    (check,) = (v for v in made.verifier.members if isinstance(v, SpotCheck))
    check.memory.add({"ann": 256, "bob": 256}, frozenset(), 256)
    return made


def unchecked(verdict: Verdict) -> bool:
    parts = [verdict, *(part for m in verdict.members for part in (m, *m.members))]
    return any(f.kind == NOT_CHECKED for part in parts for f in part.findings)


def phrase(completion: Completion) -> Completion:
    made = with_text(completion, f"All hail to the thief. {completion.text}")
    return replace(made, node=completion.node, round=completion.round)


def test_share_of_a_settled_node_is_scored_and_all_is_accepted(tmp_path: Path) -> None:
    review = settled(0.25, tmp_path).review(of("ann", free(64)))
    assert not any(v.rejected for v in review.verdicts)
    assert sum(map(unchecked, review.verdicts)) == 48
    assert review.metrics["guard/not_checked_rate"] == 0.75
    newcomer = guard(0.25, tmp_path / "new").review(of("ann", free(64)))
    assert sum(map(unchecked, newcomer.verdicts)) == 32


def test_all_completions_are_scored_without_a_share(tmp_path: Path) -> None:
    whole = presets.same_weights(*policy(), SPEC, state=tmp_path)
    assert isinstance(whole.verifier.members[1], LogProbBoundVerifier)
    assert not any(isinstance(v, SpotCheck | FormVerifier) for v in whole.verifier.members)


def test_one_rejection_scores_the_nodes_whole_batch(tmp_path: Path) -> None:
    ann, bob = of("ann", free(32)), [phrase(c) for c in of("bob", free(32))]
    verdicts = settled(0.1, tmp_path).review([*ann, *bob]).verdicts
    assert all(v.accepted for v in verdicts[:32])
    assert sum(v.rejected for v in verdicts[32:]) >= 30
    assert not any(map(unchecked, verdicts[32:]))


def test_threat_undrawn_completions_cannot_hide_ids_behind_a_text(tmp_path: Path) -> None:
    """Token split, EOS padding and a claimed mask, once each among 64, where nothing is scored."""
    eos = policy()[1].eos_token_id
    rows = of("ann", free(64))
    rows[5] = replace(rows[5], text="<think>1 + 1 = 2</think><answer>2</answer>")
    padded = (*(rows[17].completion_ids or ()), eos, eos)
    rows[17] = replace(rows[17], completion_ids=padded)
    mask = [[token] for token in rows[40].completion_ids or ()]
    rows[40] = replace(rows[40], metadata={"sampling_mask": mask})
    found = settled(0.05, tmp_path).review(rows).verdicts
    assert [i for i, v in enumerate(found) if v.rejected] == [5, 17, 40]
    # Control: with a spot check alone they pass unless drawn.
    bound = LogProbBoundVerifier(*policy(), sampling=SPEC, key=KEY)
    check = SpotCheck(bound, share=0.05, newcomers=0.05, key="a key of sixteen characters")
    passed = [v.accepted for v in AllOf(check).verify(rows)]
    assert passed[5] or passed[17] or passed[40]


def test_text_without_ids_is_treated_as_without_a_share(tmp_path: Path) -> None:
    rows = [replace(c, completion_ids=None) for c in of("ann", free(16))]
    assert not any(v.rejected for v in guard(0.5, tmp_path).review(rows).verdicts)
    strict = guard(0.5, tmp_path / "strict", require_ids=True).review(rows).verdicts
    assert all(v.rejected for v in strict)


def replaying(share: float) -> Guard:
    made = presets.shared_seed(
        *policy(), coin_swarm.SPEC, coin_swarm.COIN, slots=coin_swarm.SLOTS,
        nodes=[coin_swarm.NODE], share=share,
    )  # fmt: skip
    made.verifier.members[1].member.begin_round(coin_swarm.ROUND, coin_swarm.prompts())
    return made


def test_seeds_are_replayed_for_a_share_and_slots_filled_once() -> None:
    rows = list(coin_swarm.drawn())
    found = replaying(0.25).review(rows).verdicts
    assert all(v.accepted for v in found)
    assert 0 < sum(map(unchecked, found)) < len(rows)
    twice = replaying(0.25).review([*rows, rows[3], rows[8]]).verdicts
    assert [v.rejected for v in twice[-2:]] == [True, True]
    other = replaying(0.25).review([replace(rows[0], node="stranger"), *rows[1:]]).verdicts
    assert other[0].rejected


def test_guard_file_sets_the_share_and_invalid_ones_are_refused() -> None:
    sampling = "{engine: transformers, temperature: 1.0, top_k: 50, top_p: 1.0}"
    said = f"preset: same_weights\nmodel: {WORD_PROBLEMS}\nsampling: {sampling}\nshare: "
    made = GuardConfig.from_text(f"{said}0.1", "guard.yaml").build()
    check, form = made.verifier.members[1:3]
    assert isinstance(check, SpotCheck)
    assert check.share == 0.1
    assert isinstance(form, FormVerifier)
    assert form.of is check.member
    for wrong in ("0", "1.5", "all"):
        with pytest.raises(ConfigError, match="share"):
            GuardConfig.from_text(f"{said}{wrong}", "guard.yaml").build()
    with pytest.raises(TypeError, match=r"share: expected a number in \(0, 1\]"):
        presets.same_weights(*policy(), SPEC, share="0.1")


@pytest.mark.parametrize(("name", "coin"), [("same_weights", False), ("shared_seed", True)])
def test_eval_suite_accepts_a_guard_file_with_a_share(
    name: str, coin: bool, tmp_path: Path
) -> None:
    path = tmp_path / "sampled.yaml"
    path.write_text(f"preset: {name}\nshare: 0.5\n", encoding="utf-8")
    file = GuardFile.named(str(path))
    assert (file.coin, file.per_model) == (coin, True)
    from grpo_guard.logprob.coin import PublicCoin

    ground = Ground(SwarmConfig(), WordProblems(), tmp_path, PublicCoin("run") if coin else None)
    build = file.defence().build
    assert build is not None
    played = build(Peer(*policy()), ground)
    assert isinstance(played, VerifierGuard)
    played.begin(0, ["Q: 1 + 1?\nA:"])
    if coin:
        (check,) = (v for v in played.guard.verifier.members if isinstance(v, SpotCheck))
        assert check.member.slots.round == 0
