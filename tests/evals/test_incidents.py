"""The four attacks that were made on a public run: what they send, and who sees it."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from grpo_guard import LogProbBoundVerifier, presets  # noqa: E402
from grpo_guard.core.registry import UnknownNameError  # noqa: E402
from grpo_guard.core.verdict import Verdict  # noqa: E402
from grpo_guard.evals.attacks.incidents import EosPadding, TokenSplit, without  # noqa: E402
from grpo_guard.evals.attacks.registry import adversary, on_texts  # noqa: E402
from grpo_guard.evals.defences.base import Ground  # noqa: E402
from grpo_guard.evals.defences.registry import defence  # noqa: E402
from grpo_guard.evals.detect.poison import poisoned  # noqa: E402
from grpo_guard.evals.swarm.config import SwarmConfig  # noqa: E402
from grpo_guard.evals.swarm.engine import Swarm  # noqa: E402
from grpo_guard.evals.swarm.members import Peer  # noqa: E402
from grpo_guard.evals.swarm.record import Submitted  # noqa: E402
from grpo_guard.evals.tasks.word_problems import WordProblems  # noqa: E402
from grpo_guard.logprob.coin import PublicCoin  # noqa: E402
from tests.logprob.bundled_policy import SPEC, honest, policy  # noqa: E402

CONFIG = SwarmConfig(iterations=1, prompts=4, group_size=8, max_new_tokens=48)
INCIDENTS = ("token_split", "cap_forcing", "eos_padding", "reward_selection")


@cache
def round_of(name: str, coin: bool = False) -> tuple[list[Submitted], list[str]]:
    """One exchange of four nodes, the last of them malicious, without training."""
    torch.set_num_threads(1)
    attack = adversary(name)
    seeds = PublicCoin("incidents") if coin else None
    swarm = Swarm([Peer(*policy())], WordProblems(), CONFIG, attack=attack, coin=seeds)
    return swarm.exchange(0)


def poison(name: str) -> list[Submitted]:
    return [item for item in round_of(name)[0] if item.poisoned]


def judged(chosen: str, name: str, folder: Path) -> tuple[list[Verdict], list[Verdict]]:
    """Return a defence's verdicts on (poison, honest completions) of a round."""
    found = defence(chosen)
    coin = PublicCoin("incidents") if found.coin else None
    submitted, asked = round_of(name, found.coin)
    assert found.build is not None
    guard = found.build(Peer(*policy()), Ground(CONFIG, WordProblems(), folder, coin))
    guard.begin(0, asked)
    verdicts = guard.review([item.completion for item in submitted]).verdicts
    pairs = list(zip(submitted, verdicts, strict=True))
    return (
        [verdict for item, verdict in pairs if item.poisoned],
        [verdict for item, verdict in pairs if not item.malicious],
    )


def all_rejected(verdicts: Sequence[Verdict]) -> bool:
    return bool(verdicts) and all(v.rejected for v in verdicts)


def test_the_tokens_are_a_sample_that_earns_nothing_and_the_text_earns() -> None:
    tokenizer, task = policy()[1], WordProblems()
    assert poison("token_split")
    for item in poison("token_split"):
        sent = item.completion
        proved = tokenizer.decode(sent.completion_ids, skip_special_tokens=True)
        assert item.reward == 1.0
        assert task.reward(proved, sent.reference or "") == 0.0


def test_all_run_to_the_cap_and_the_model_is_as_it_was() -> None:
    eos = policy()[1].eos_token_id
    sent = [item.completion for item in poison("cap_forcing")]
    assert len(sent) == 8
    assert {len(one.completion_ids or ()) for one in sent} == {48}
    assert not any(eos in (one.completion_ids or ()) for one in sent)
    assert {one.finish_reason for one in sent} == {"length"}
    model = policy()[0]
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        before = model(ids).logits
        with without(model, eos):
            assert model(ids).logits[0, -1, eos] == -float("inf")
        assert torch.equal(model(ids).logits, before)


def test_padding_fills_the_declared_length_and_no_text_shows_it() -> None:
    eos = policy()[1].eos_token_id
    assert poison("eos_padding")
    for item in poison("eos_padding"):
        ids = item.completion.completion_ids or ()
        assert (item.reward, len(ids), ids[-2:]) == (1.0, 48, (eos, eos))
        assert item.completion.text == policy()[1].decode(ids, skip_special_tokens=True)


def test_selected_samples_are_honest_and_all_earn() -> None:
    assert poison("reward_selection")
    for item in poison("reward_selection"):
        ids = item.completion.completion_ids or ()
        assert item.reward == 1.0
        assert policy()[1].decode(ids[:-1]) == item.completion.text


def test_a_group_of_ones_own_holds_three_right_ones_to_a_wrong_one() -> None:
    attack = adversary("reward_selection")
    config = SwarmConfig(prompts=4, group_size=8, max_new_tokens=48, setting="vertical")
    sent = Swarm([Peer(*policy())], WordProblems(), config, attack=attack).exchange(0)[0]
    groups: dict[int | None, list[float]] = {}
    for item in sent:
        if item.malicious:
            groups.setdefault(item.completion.group, []).append(item.reward)
    # As far as the policy gets problems right at all.
    assert max(map(sum, groups.values())) == 6.0


@pytest.mark.parametrize("name", ["token_split", "eos_padding", "cap_forcing"])
def test_equal_weights_see_three_of_them(name: str, tmp_path: Path) -> None:
    caught, free = judged("same_weights", name, tmp_path)
    assert sum(v.rejected for v in caught) >= 0.9 * len(caught) > 0
    assert not any(v.rejected for v in free)


@pytest.mark.slow
def test_equal_weights_cannot_tell_a_choice_among_honest_samples_and_a_seed_can(
    tmp_path: Path,
) -> None:
    """The negative control: what docs/limits.md says that nobody sees without a shared seed."""
    caught, _ = judged("same_weights", "reward_selection", tmp_path / "equal")
    assert caught
    assert not any(v.rejected for v in caught)
    caught, free = judged("homogeneous", "reward_selection", tmp_path / "seed")
    assert all_rejected(caught)
    assert not any(v.rejected for v in free)


def test_rules_of_text_see_padding_and_not_what_a_text_hides(tmp_path: Path) -> None:
    padded, free = judged("heterogeneous", "eos_padding", tmp_path / "padding")
    assert all_rejected(padded)
    assert not any(v.rejected for v in free)
    split, _ = judged("heterogeneous", "token_split", tmp_path / "split")
    # The text of the ids is read, and it is honest work but for its result.
    assert not all(v.rejected for v in split)


def test_failures_only_leaves_out_what_was_cut_off_whoever_sent_it() -> None:
    guard = presets.failures_only(tokenizer=policy()[1])
    cut = [item.completion for item in poison("cap_forcing")]
    chosen = [item.completion for item in poison("reward_selection")]
    assert all(v.rejected for v in guard.review(cut).verdicts)
    assert not any(v.rejected for v in guard.review(chosen).verdicts)


@pytest.mark.parametrize("attack", [TokenSplit(), EosPadding()])
def test_detection_runs_know_the_two_of_single_completions(attack: TokenSplit | EosPadding) -> None:
    tokenizer = policy()[1]
    cases = poisoned(honest(8), attack, tokenizer, seed=0)
    bound = LogProbBoundVerifier(*policy(), sampling=SPEC)
    assert len(cases) == 8
    assert all_rejected(bound.verify([case.completion for case in cases]))
    assert not any(v.rejected for v in bound.verify(honest(8)))


@pytest.mark.parametrize("name", INCIDENTS)
def test_none_teaches_a_phrase_and_the_others_need_a_swarm(name: str) -> None:
    attack = adversary(name)
    assert attack is not None
    assert not attack.success("<think>2 + 2 = 4</think><answer>4</answer>")
    if name in ("token_split", "eos_padding"):
        assert on_texts(name)
    else:
        with pytest.raises(UnknownNameError, match="needs a live swarm"):
            on_texts(name)
