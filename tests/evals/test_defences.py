"""Defences: each does what its name says on the bundled policy, and keeps its state."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from grpo_guard.core.completion import Completion  # noqa: E402
from grpo_guard.core.registry import UnknownNameError  # noqa: E402
from grpo_guard.evals.defences.early import defences  # noqa: E402
from grpo_guard.evals.defences.own import GuardFile  # noqa: E402
from grpo_guard.evals.defences.paper import PaperLogitVerifier  # noqa: E402
from grpo_guard.evals.defences.registry import defence  # noqa: E402
from grpo_guard.evals.policies.bundled import load_bundled  # noqa: E402
from grpo_guard.evals.studies.baselines.registry import MaskSpans, capped  # noqa: E402
from grpo_guard.evals.swarm.config import SwarmConfig  # noqa: E402
from grpo_guard.evals.swarm.experiment import Spec, build, entry, held_out, play  # noqa: E402
from grpo_guard.evals.swarm.workload import variants  # noqa: E402
from grpo_guard.logprob.reader.reader import Opinion  # noqa: E402
from grpo_guard.logprob.reader.spans import TextSpan  # noqa: E402
from grpo_guard.nodes.ledger import EvidenceLedger  # noqa: E402

SMALL = SwarmConfig(iterations=2, prompts=4, group_size=8, max_new_tokens=48)


def played(tmp_path: Path, attack: str, name: str, **settings: Any) -> dict[str, Any]:
    torch.set_num_threads(1)
    config = SwarmConfig(**{
        "iterations": 2, "prompts": 4, "group_size": 8, "max_new_tokens": 60, **settings
    })  # fmt: skip
    return play(Spec(attack, name, config), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", defences())
def test_every_defence_runs(tmp_path: Path, name: str) -> None:
    run = played(tmp_path, "text", name)
    assert len(run["asr"]) == 2
    assert run["submitted"]["poisoned"] == 16
    assert json.loads(json.dumps(run)) == run


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper_logit", "logprob_bound", "seed_replay", "homogeneous"])
def test_text_is_rejected_with_shared_weights(tmp_path: Path, name: str) -> None:
    run = played(tmp_path, "text", name)
    assert run["rejected"]["poisoned"] == run["submitted"]["poisoned"]
    assert run["rejected"]["honest"] == 0
    assert {e["kind"] for e in run["examples"]} == {"rejected_poison"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "setting"), [("text", "horizontal"), ("math", "vertical")])
def test_replay_leaves_a_swarm_with_a_silent_attacker(
    tmp_path: Path, name: str, setting: Any
) -> None:
    """All poison is rejected and nothing else: identical, bit for bit, to the run without an
    attack.
    """
    config = replace(SMALL, setting=setting, iterations=3)
    guarded = build(Spec(name, "homogeneous", config), tmp_path)
    free = build(Spec("silent", "coin", config), tmp_path)
    for iteration in range(3):
        one, other = guarded.step(iteration), free.step(iteration)
        assert one.rejected_poisoned == one.poisoned > 0
        assert one.rejected_honest == 0
        assert other.withheld == one.poisoned + one.cover
        assert one.honest_reward == other.honest_reward
        assert one.mean_tokens == other.mean_tokens
    pairs = zip(guarded.model.parameters(), free.model.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


@pytest.mark.slow
def test_replay_detects_chosen_problems_and_samples(tmp_path: Path) -> None:
    for number, attack in enumerate(("math", "dos", "reward_selection")):
        folder = tmp_path / str(number)
        folder.mkdir()
        setting = "vertical" if attack in ("math", "dos") else "horizontal"
        run = played(folder, attack, "homogeneous", setting=setting)
        assert run["rejected"]["poisoned"] == run["submitted"]["poisoned"], attack
        assert run["rejected"]["cover"] == run["submitted"]["cover"], attack
        assert run["rejected"]["honest"] == 0, attack


@pytest.mark.slow
def test_heterogeneous_swarm_with_its_stack(tmp_path: Path) -> None:
    run = played(tmp_path, "text", "heterogeneous", models="heterogeneous", prompts=16)
    assert run["models"] == "heterogeneous"
    assert run["rejected"]["poisoned"] > 0.8 * run["submitted"]["poisoned"]
    assert run["abstained"] == 0
    assert sum(run["honest_rejected_for"].values()) >= run["rejected"]["honest"]


@pytest.mark.slow
def test_trained_policy_is_the_reader_in_its_own_swarm(tmp_path: Path) -> None:
    """It reads with the weights of the round, and its guard's state survives a checkpoint."""
    swarm = build(Spec("text", "different_weights_reader", replace(SMALL, prompts=12)), tmp_path)
    (member,) = swarm.members
    asked = "Q: Noah has 14 books. A friend takes 6. How many books does Noah have now?\nA:"
    text = "<think>14 - 6 = 8 books.</think><answer>8 books</answer>"
    span = TextSpan(asked, text, text.index("14"), text.index("</think>"), "node-3")

    def opinion() -> object:
        reader = member.guard.guard.verifier.reader
        return reader.read([span], [False])[0]

    early = opinion()
    assert isinstance(early, Opinion)
    assert early.excused is None, "the start profile decides: no peer is known yet"
    first = swarm.step(0)
    assert first.abstained == 0
    assert first.rejected_honest < 0.1 * first.honest
    known = opinion()
    assert isinstance(known, Opinion)
    with torch.no_grad():
        member.model.lm_head.weight.zero_()  # no word is likelier than another now
    after = opinion()
    assert isinstance(after, Opinion)
    assert after.p_value < known.p_value
    member.guard.restore(member.guard.state())


def test_paper_logit_matches_the_paper() -> None:
    model, tokenizer = load_bundled()
    prompt = tuple(tokenizer.encode("Q: Ann has 2 cows.\nA:"))
    with torch.no_grad():
        order = model(torch.tensor([prompt])).logits[0, -1].argsort(descending=True).tolist()
    verifier = PaperLogitVerifier(model, k=50)
    batch = [
        Completion("p", "t", prompt_ids=prompt, completion_ids=(order[rank],))
        for rank in (0, 49, 50, 900)
    ]
    assert [v.rejected for v in verifier.verify(batch)] == [False, False, True, True]
    assert verifier.verify([]) == []
    with pytest.raises(ValueError, match="token ids"):
        verifier.verify([Completion("p", "t")])


@pytest.mark.slow
def test_length_factors_reach_the_update(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    own = tmp_path / "lengths.yaml"
    own.write_text("{preset: different_weights, length_scaling: {tolerance: 0.0}}")
    config = replace(SMALL, setting="horizontal")
    swarm = build(Spec("dos", "own", config, guard=GuardFile.named(str(own))), tmp_path)
    submitted, asked = swarm.exchange(0)
    review = swarm.members[0].review(0, asked, submitted)
    assert review is not None
    assert review.length_factors is not None
    assert min(review.length_factors) < 1


@pytest.mark.slow
def test_guard_state_survives_a_checkpoint(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first = build(Spec("text", "heterogeneous", SMALL), tmp_path / "one")
    first.step(0)
    state = first.state()
    second = build(Spec("text", "heterogeneous", SMALL), tmp_path / "two")
    second.restore(state)
    kept = [EvidenceLedger(tmp_path / run / "nodes.sqlite") for run in ("one", "two")]
    assert kept[0].standings() == kept[1].standings()
    assert {standing.node for standing in kept[0].standings()} >= {"node-0", "node-3"}
    done, again = first.step(1), second.step(1)
    assert done.rejected_poisoned == again.rejected_poisoned
    assert done.excluded == again.excluded
    assert done.asr == again.asr
    assert done.grad_norm == again.grad_norm


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'homogeneous'"):
        defence("homogenous")
    assert defence("none").build is None
    assert defence("kl_0.1").training == {"kl_beta": 0.1}


def test_a_kl_defence_sets_the_loss(tmp_path: Path) -> None:
    swarm = build(Spec("text", "kl_0.1", SMALL), tmp_path)
    assert swarm.config.kl_beta == 0.1
    assert swarm.members[0].reference is not None


@pytest.mark.slow
def test_variants_differ_and_are_reproducible() -> None:
    torch.set_num_threads(1)
    made = [variants(*load_bundled(), 3, steps=2) for _ in range(2)]
    weights = [[next(peer.model.parameters()) for peer in peers] for peers in made]
    assert not torch.equal(weights[0][1], weights[0][2])
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other)
    assert len({peer.temperature for peer in made[0]}) == 3
    cooler = variants(*load_bundled(), 3, steps=1, temperature=0.5)
    assert [p.temperature for p in cooler] == [(p.temperature or 0) / 2 for p in made[0]]


def test_held_out_accuracy_and_exclusions_of_a_run(tmp_path: Path) -> None:
    swarm = build(Spec("none", "none", SMALL), tmp_path)
    assert swarm.config.malicious == 0
    correct, total = held_out(swarm, 16)
    assert 0 <= correct <= total == 16
    assert entry(Spec("none", "none", SMALL), [], [])["excluded"] == {}


def test_masked_and_capped_tokens_have_no_gradient() -> None:
    from grpo_guard.evals.swarm.grpo import Weighted, accumulate

    torch.set_num_threads(1)
    model, tokenizer = load_bundled()
    prompt = tokenizer.encode("Q: Ann has 2 cows.\nA:")
    ids = tokenizer.encode("<think>2 + 2 = 4 cows.</think>")

    def gradient(item: Weighted, **options: Any) -> torch.Tensor:
        model.zero_grad()
        accumulate(model, [item], 8, **options)
        grads = [p.grad for p in model.parameters()]
        return torch.cat([g.flatten() for g in grads if g is not None])

    whole = gradient(Weighted(prompt, ids, 1.0))
    assert gradient(Weighted(prompt, ids, 1.0, ((0, len(ids)),))).abs().max() == 0
    parts = gradient(Weighted(prompt, ids, 1.0, ((0, 4),)))
    others = gradient(Weighted(prompt, ids, 1.0, ((4, len(ids)),)))
    torch.testing.assert_close(parts + others, whole, rtol=1e-3, atol=1e-6)

    def below_one(weight: Any, logprobs: Any) -> Any:
        return capped(weight, logprobs, 1.0)

    assert gradient(Weighted(prompt, ids, 1.0), reweighed=below_one).norm() < whole.norm()
    down = gradient(Weighted(prompt, ids, -1.0), reweighed=below_one)
    torch.testing.assert_close(down, -whole, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_masked_completion_stays_in_the_group(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    swarm = build(Spec("text", "mask_span", SMALL), tmp_path)
    assert all(isinstance(member, MaskSpans) for member in swarm.members)
    done = swarm.step(0)
    assert done.rejected_poisoned == done.poisoned
    dropped = build(Spec("text", "logprob_bound", SMALL), tmp_path).step(0)
    assert dropped.rejected_poisoned == done.rejected_poisoned
    assert done.grad_norm != dropped.grad_norm
