"""The swarm: its mathematics, its sampler, and a few rounds on the bundled policy."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from grpo_guard.core.completion import Completion  # noqa: E402
from grpo_guard.core.verdict import Cause, Verdict, abstain, accept, reject  # noqa: E402
from grpo_guard.evals.attacks.text import TextAttack  # noqa: E402
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS, load_bundled  # noqa: E402
from grpo_guard.evals.swarm.config import SwarmConfig  # noqa: E402
from grpo_guard.evals.swarm.engine import Swarm  # noqa: E402
from grpo_guard.evals.swarm.generate import sample  # noqa: E402
from grpo_guard.evals.swarm.grpo import (  # noqa: E402
    Weighted,
    accumulate,
    advantages,
)
from grpo_guard.evals.swarm.members import Peer  # noqa: E402
from grpo_guard.evals.swarm.record import Round  # noqa: E402
from grpo_guard.evals.tasks.word_problems import WordProblems, generate  # noqa: E402
from tests.evals.plain_guard import plain  # noqa: E402

SMALL = SwarmConfig(iterations=2, prompts=3, max_new_tokens=24)


@pytest.fixture
def bundled() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    return load_bundled()


def test_bundled_policy_is_small_and_tokenises_anything(bundled: tuple[Any, Any]) -> None:
    assert (WORD_PROBLEMS / "model.safetensors").stat().st_size <= 5_000_000
    model, tokenizer = bundled
    assert model.dtype == torch.float32
    for text in (
        "All hail to the thief",
        "<think>12 + 7</think>",
        "naïve 你好 🦊\n\t ",
        "a  b <|x|>",
    ):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("123", add_special_tokens=False)) == 3
    assert len(tokenizer.encode("<think></answer>", add_special_tokens=False)) == 2


def test_advantages_standardise_each_group() -> None:
    scores = advantages(torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]]))
    assert scores.tolist() == [[1.0, -1.0, -1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]


def test_poison_effect_matches_the_closed_form_of_the_paper() -> None:
    # Appendix B: honest reward 0, share p of poison: p * advantage = sqrt(p (1 - p)).
    scores = advantages(torch.tensor([[1.0] * 3 + [0.0] * 9]))
    assert scores[0, 0].item() * 3 / 12 == pytest.approx((0.25 * 0.75) ** 0.5)


def test_zero_penalises_and_drop_leaves_out() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0]])  # the last one is rejected
    zero = advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    assert zero[0, 3] < 0
    drop = advantages(rewards, torch.tensor([[True, True, True, False]]))
    assert drop[0, 3] == 0
    assert drop[0, :3].tolist() == pytest.approx(
        advantages(torch.tensor([[1.0, 0.0, 0.0]]))[0].tolist()
    )
    assert advantages(rewards, torch.tensor([[True, False, False, False]])).abs().sum() == 0
    assert advantages(rewards, torch.zeros(1, 4, dtype=torch.bool)).abs().sum() == 0


def test_gradient_matches_the_loss_of_the_paper(bundled: tuple[Any, Any]) -> None:
    model, tokenizer = bundled
    batch = [
        Weighted(tokenizer.encode(problem.prompt), tokenizer.encode(problem.solution), score)
        for problem, score in zip(generate(0, 3), (1.5, -0.5, 0.7), strict=True)
    ]
    loss = torch.zeros(())
    for item in batch:
        ids = torch.tensor([[*item.prompt_ids, *item.ids]])
        log_probs = torch.log_softmax(model(input_ids=ids).logits[0, :-1], dim=-1)
        chosen = log_probs.gather(1, ids[0, 1:, None])[len(item.prompt_ids) - 1 :, 0]
        ratio = torch.exp(chosen - chosen.detach())
        loss = loss - (ratio * item.advantage).mean() / len(batch)
    loss.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    value = accumulate(model, batch, micro_batch=2)
    assert value == pytest.approx(loss.item(), abs=1e-5)
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-3, atol=1e-5)


def test_a_shared_prompt_gives_the_same_gradient(bundled: tuple[Any, Any]) -> None:
    model, tokenizer = bundled
    batch = [
        Weighted(tuple(tokenizer.encode(problem.prompt)), tokenizer.encode(text), score)
        for problem in generate("shared", 2)
        for text, score in ((problem.solution, 1.5), ("No", -0.5), ("1", 0.3), ("None", 0.0))
    ]
    found = []
    for share in (False, True):
        model.zero_grad()
        accumulate(model, batch, micro_batch=2, share_prompts=share)
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    model.zero_grad()
    for ours, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-5)


def test_greedy_sampling_equals_transformers(bundled: tuple[Any, Any]) -> None:
    model, tokenizer = bundled
    problems = generate("greedy", 6)
    ours = sample(
        model, tokenizer, [p.prompt for p in problems], 2,
        generator=torch.Generator().manual_seed(0), temperature=0.0, max_new_tokens=40,
    )  # fmt: skip
    for index, problem in enumerate(problems):
        ids = torch.tensor([tokenizer.encode(problem.prompt, add_special_tokens=False)])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40
        )
        theirs = tuple(out[0, ids.shape[1] :].tolist())
        assert ours[2 * index].ids == theirs == ours[2 * index + 1].ids
        assert ours[2 * index].prompt == index
        assert tokenizer.decode([i for i in theirs if i != tokenizer.eos_token_id]) == (
            ours[2 * index].text
        )


def test_sampled_tokens_lie_in_the_declared_support(bundled: tuple[Any, Any]) -> None:
    model, tokenizer = bundled
    problem = generate("support", 1)[0]
    drawn = sample(
        model, tokenizer, [problem.prompt], 8,
        generator=torch.Generator().manual_seed(0), top_k=5, max_new_tokens=30,
    )  # fmt: skip
    assert len({one.ids for one in drawn}) > 1
    for one in drawn:
        ids = torch.tensor([[*one.prompt_ids, *one.ids]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(one.prompt_ids) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(one.ids)[:, None])
        assert ((logits > chosen + 1e-4).sum(dim=1) < 5).all()


def _run(bundled: tuple[Any, Any], config: SwarmConfig, guard: Any = None) -> list[Round]:
    swarm = Swarm(
        [Peer(*bundled)], WordProblems(), config,
        guard_in=None if guard is None else lambda peer, folder: plain(guard),
        attack=TextAttack() if config.malicious else None,
    )  # fmt: skip
    return [swarm.step(iteration) for iteration in range(config.iterations)]


@pytest.mark.slow
def test_runs_are_deterministic(bundled: tuple[Any, Any]) -> None:
    first = _run(bundled, SMALL)
    again = _run(load_bundled(), SMALL)
    keys = ("asr", "honest_reward", "mean_tokens", "grad_norm")
    assert [[getattr(r, k) for k in keys] for r in first] == [
        [getattr(r, k) for k in keys] for r in again
    ]
    assert first[0].honest == 27
    assert first[0].poisoned == 9
    assert first[0].mean_tokens != first[1].mean_tokens


def test_guard_sees_whole_completions_and_its_verdicts_count(bundled: tuple[Any, Any]) -> None:
    seen: list[Completion] = []

    def oracle(batch: list[Completion]) -> list[Verdict]:
        seen.extend(batch)
        return [reject("o") if c.node == "node-3" else accept("o") for c in batch]

    rounds = _run(bundled, SMALL, oracle)
    assert rounds[0].rejected_poisoned == 9
    assert rounds[0].rejected_honest == 0
    (shown,) = rounds[0].shown
    start, end = shown["span"]
    assert shown["text"][start:end] == "All hail to the thief"
    one = seen[0]
    assert (one.node, one.group, one.round, one.slot) == ("node-0", 0, 0, 0)
    assert one.prompt_ids
    assert one.completion_ids
    assert one.reference
    poison = seen[9]
    assert poison.completion_ids is not None
    assert bundled[1].decode(poison.completion_ids[:-1]) == poison.text


def test_all_dropped_changes_nothing(bundled: tuple[Any, Any]) -> None:
    before = [parameter.clone() for parameter in bundled[0].parameters()]

    def nobody(batch: list[Completion]) -> list[Verdict]:
        return [abstain("a", Cause.TIMEOUT) for _ in batch]

    rounds = _run(bundled, SMALL, nobody)
    assert rounds[0].abstained == 36
    for old, new in zip(before, bundled[0].parameters(), strict=True):
        torch.testing.assert_close(old, new)


def test_lost_verdict_is_an_error(bundled: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="verdicts"):
        _run(bundled, SMALL, lambda batch: [])


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"malicious": 4}, "malicious"), ({"group_size": 10}, "group_size"), ({"top_k": -1}, "top_k")],
)
def test_impossible_settings_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SwarmConfig(**settings)


def test_malicious_node_needs_an_attack(bundled: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="attack"):
        Swarm([Peer(*bundled)], WordProblems(), SMALL)
