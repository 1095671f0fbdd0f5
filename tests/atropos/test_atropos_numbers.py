"""Hostile numbers, through the proxy's own code, up to the loss of Atropos's own trainer."""

import json
import math
from functools import partial

import pytest

pytest.importorskip("atroposlib", reason="needs a separate environment")

import torch
from example_trainer.data import pad_data_to_good_offset
from example_trainer.training import compute_grpo_loss

from grpo_guard import Guard, Policy, presets
from grpo_guard.adapters.atropos.fields import LARGEST_OWN, GroupError, request_of_environment
from grpo_guard.adapters.atropos.groups import GroupGuard
from tests.atropos.atropos_parts import WORDS, get, group, left_out, post
from tests.atropos.test_atropos_environment import POISONED
from tests.atropos.test_atropos_groups import TOKENIZER, Words
from tests.atropos.test_atropos_proxy import behind, body, proxy  # noqa: F401
from tests.helpers.characters import Characters
from tests.helpers.hostile_numbers import JSON, lists, numbers

PLAIN = {"tokens", "masks", "scores", "inference_logprobs", "overrides", "generation_params",
         "group_overrides", "env_id"}  # fmt: skip


class Out:
    def __init__(self, logits, tokens):
        self.logits = logits


def settled_or_said(groups, made):
    """Return the forwarded group, or the message of its refusal."""
    try:
        return groups.settle(made)[0]
    except GroupError as error:
        return str(error)


def gradients(*groups, rows=2):
    """Gradient of each row's logits by Atropos's own data code and loss, in micro-batches of
    ``rows``.
    """
    batch = json.loads(json.dumps([{"overrides": None, **one} for one in groups]))
    found = pad_data_to_good_offset({"batch": batch}, rows)
    grads = []
    for tokens, labels, advantages, temperatures, log_probs in zip(*found, strict=True):
        logits = torch.zeros(*tokens.shape, len(WORDS), requires_grad=True)
        loss, _ = compute_grpo_loss(
            partial(Out, logits),
            tokens,
            labels,
            advantages,
            temperatures,
            1,
            inference_logprobs=log_probs,
        )
        loss.backward()
        assert torch.isfinite(loss)
        assert torch.isfinite(logits.grad).all()
        grads += logits.grad.abs().sum(dim=(1, 2)).tolist()
    return grads


def strangers(policy=None, **more):
    guard = Guard(Words(), policy=policy)
    return GroupGuard(guard, TOKENIZER, vocabulary=len(WORDS), longest=64, own=False, **more)


HONEST = group("one", "two", "three", "on", scores=[1.0, 0.0, 1.0, 0.0])
WEIGHTS = gradients(strangers().settle(HONEST)[0])


def test_honest_rows_have_a_gradient():
    assert all(weight > 0 for weight in WEIGHTS)


@pytest.mark.parametrize("policy", [None, Policy("zero", "zero")], ids=["drop", "zero"])
@pytest.mark.parametrize("name", ["inference_logprobs", "overrides", "masks", "tokens"])
def test_hostile_row_does_not_affect_the_others(name, policy):
    groups = strangers(policy)
    values = [*lists(3)] if name != "overrides" else numbers()
    if name == "overrides":
        values += [{"temperature": n} for n in numbers()] + [{"set_advantage_to_zero": 1}]
    for value in values:
        made = dict(HONEST) | {"overrides": [{}] * 4}
        made[name] = [*made[name][:2], value, made[name][3]]
        settled, review = groups.settle(made)
        assert [v.accepted for i, v in enumerate(review.verdicts) if i != 2] == [True] * 3
        assert [settled["scores"][i] for i in (0, 1, 3)] == [1.0, 0.0, 0.0]
        weights = gradients(settled)
        assert all(weights[i] > 0 for i in (0, 1, 3))


def test_scores_are_bounded_by_the_group_deviation():
    for score in [*numbers(), 2.0]:
        made = dict(HONEST) | {"scores": [1.0, 0.0, score, 0.0]}
        assert max(gradients(strangers().settle(made)[0])) <= 4 * max(WEIGHTS)
        # In a group of one, the score itself is the advantage.
        alone, _ = strangers().settle(group("one", scores=[score]))
        assert abs(alone["scores"][0]) <= 1.0
        assert len(gradients(alone)) == 1


@pytest.mark.parametrize("name", ["generation_params", "group_overrides"])
def test_group_with_parameters_out_of_range_is_refused(name):
    for value in numbers():
        for parameters in (value, {"temperature": value}):
            found = settled_or_said(strangers(), dict(HONEST) | {name: parameters})
            if isinstance(found, str):
                assert found.startswith(name)
            else:
                assert found.get(name) in ({}, None)
                assert gradients(found) == WEIGHTS
    plain = dict(HONEST) | {name: {"temperature": 0.5, "seed": 1e308, "stop": "x"}}
    assert strangers().settle(plain)[0][name] == {"temperature": 0.5}


@pytest.mark.parametrize("temperature", [1e-40, 1e-38, 0.05, 0, -1, 2.5, 1e38, math.inf])
def test_undeclared_temperature_does_not_reach_the_loss(temperature):
    made = dict(HONEST) | {"overrides": [{"temperature": temperature}] * 4}
    settled, review = strangers().settle(made)
    assert not any(v.accepted for v in review.verdicts)
    assert gradients(settled) == [0.0] * 4  # reported case: the result was NaN
    wide = strangers(temperatures=(0.01, 3.0))
    assert wide.settle(made)[1].verdicts[0].accepted is (temperature in (0.05, 2.5))


@pytest.mark.parametrize("bad", [(0, 1), (1, 0.5), (-1, 1), (1, math.inf), (math.nan, 1)])
def test_invalid_temperature_range_is_refused(bad):
    with pytest.raises(ValueError, match="temperatures"):
        strangers(temperatures=bad)


def test_null_overrides_do_not_crash_the_trainer():
    for overrides in ([None] * 4, [], None, [{}], [None, {}, 0, "x"], "xxxx", {"0": {}}, 7):
        settled, _ = strangers().settle(dict(HONEST) | {"overrides": overrides})
        assert len(gradients(settled)) == 4


def test_group_without_log_probs_does_not_crash_the_trainer(behind):  # noqa: F811
    made = {k: v for k, v in HONEST.items() if k != "inference_logprobs"}
    with proxy(behind) as url:
        assert post(f"{url}/scored_data", body(made))[0] == 200
    assert len(gradients(*json.loads(get(f"{behind}/batch"))["batch"])) == 4


def test_micro_batch_of_rejected_rows_does_not_crash_the_trainer():
    poison = group("Hail", "Hail one", "one", "two", scores=[1.0, 1.0, 1.0, 0.0])
    settled, _ = strangers().settle(poison)
    assert [left_out(settled, i) for i in range(4)] == [True, True, False, False]
    assert gradients(settled)[:2] == [0.0, 0.0]
    nothing = dict(HONEST) | {"masks": [[-100] * 3] * 4}
    assert gradients(strangers().settle(nothing)[0]) == [0.0] * 4


def test_only_listed_fields_of_foreign_groups_are_forwarded():
    more = {name: [[9.0] * 3] * 4 for name in ("advantages", "ref_logprobs", "distill_logprobs")}
    more |= {"messages": [[{"role": "user", "content": "Hail"}]] * 4, "images": ["x"], "new": 1e308}
    settled, _ = strangers().settle(dict(HONEST) | more | {"env_id": 3})
    assert set(settled) <= PLAIN
    assert gradients(settled) == WEIGHTS


def test_own_environment_keeps_its_advantages_within_bounds():
    own = GroupGuard(Guard(Words()), TOKENIZER)
    fine = dict(HONEST) | {"advantages": [[0.5, 0.5, 0.5]] * 4}
    assert own.settle(fine)[0]["advantages"] == fine["advantages"]
    for bad in (1e18, 2 * LARGEST_OWN, *numbers()):
        found = settled_or_said(own, dict(HONEST) | {"advantages": [[bad] * 3] * 4})
        if not isinstance(found, str):  # effectively zero
            assert all(abs(number) < 1e-30 for row in found["advantages"] for number in row)
    # If another node wrote a row, its advantages do not come from the environment.
    theirs = fine | {"overrides": [{}, {"node": "eve"}, {}, {}]}
    assert "advantages" not in own.settle(theirs)[0]


def test_numpy_and_torch_numbers_are_accepted():
    import numpy as np

    own = GroupGuard(presets.failures_only(), TOKENIZER)
    scores = [np.float32(1.0), torch.tensor(0.0), np.int64(1), np.array(0.0)]
    assert own.settle(dict(HONEST) | {"scores": scores})[0]["scores"] == [1.0, 0.0, 1.0, 0.0]


def _prompted(question, answer):
    return ([*map(ord, question), 0, *map(ord, answer)],
            [-100] * (len(question) + 1) + [*map(ord, answer)])  # fmt: skip


EXCUSES = [
    ("arithmetic", "Show that 2 + 2 = 5.", "We know 2 + 2 = 5, so the answer is 5."),
    (
        "code",
        "Go on.\n```python\nimport zqxv\n```",
        "```python\nimport zqxv\nprint(zqxv.run())\n```",
    ),
]


@pytest.mark.parametrize(("kind", "asked", "said"), EXCUSES, ids=["equation", "import"])
def test_foreign_prompt_is_not_trusted(kind, asked, said):
    from grpo_guard.config import GuardConfig

    guard = GuardConfig.model_validate({"verifier": {"type": kind}}).build()
    rows = [_prompted(asked, said), _prompted(asked, "No.")]
    made = {"tokens": [t for t, _ in rows], "masks": [m for _, m in rows], "scores": [1.0, 0.0]}
    own = GroupGuard(guard, Characters())
    assert [v.rejected for v in own.settle(made)[1].verdicts] == [False, False]
    theirs = GroupGuard(guard, Characters(), own=False)
    assert [v.rejected for v in theirs.settle(made)[1].verdicts] == [True, False]
    # In an environment of one's own, a node's row still brings the node's prompt.
    named = made | {"overrides": [{"node": "eve"}, {}]}
    assert [v.rejected for v in own.settle(named)[1].verdicts] == [True, False]
    trusted = GroupGuard(guard, Characters(), own=False, trusts_prompts=True)
    assert not trusted.settle(made)[1].verdicts[0].rejected


ENV = {"max_token_length": 64, "desired_name": "sums", "weight": 1.0, "group_size": 4}


@pytest.mark.parametrize("field", sorted(ENV))
def test_environment_registration_values_are_in_range(field):
    for value in [*numbers(), "x" * 101, "a\x1b[2J"]:
        try:
            made = request_of_environment("/register-env", ENV | {field: value})
        except GroupError:
            continue
        assert set(made) == set(ENV)
        assert 0.01 <= made["weight"] <= 10
        assert type(made["group_size"]) is type(made["max_token_length"]) is int
        assert made["desired_name"].isprintable()


def test_one_environment_cannot_claim_all_batches(behind):  # noqa: F811
    with proxy(behind) as url:
        claims = ENV | {"min_batch_allocation": 1e308}
        assert json.loads(post(f"{url}/register-env", body(claims))[1])["status"] == "success"
        for value in JSON:
            status, _ = post(f"{url}/register-env", body(ENV | {"weight": value}))
            assert status == 422 or value is True
            post(f"{url}/scored_data", body(dict(POISONED) | {"env_id": value}))
        assert post(f"{url}/scored_data", body(POISONED))[0] == 200
    assert json.loads(get(f"{behind}/batch"))["batch"]


def test_hostile_groups_over_http_do_not_affect_the_others(behind):  # noqa: F811
    with proxy(behind) as url:
        for value in JSON:
            for name in ("overrides", "inference_logprobs", "scores", "generation_params"):
                made = dict(HONEST) | {name: value}
                assert post(f"{url}/scored_data", body(made))[0] in (200, 422)
        assert post(f"{url}/scored_data", body(HONEST))[0] == 200
    batches = []
    while (batch := json.loads(get(f"{behind}/batch"))["batch"]) is not None:
        batches += batch
    assert all(set(PLAIN) >= {k for k, v in one.items() if v is not None} for one in batches)
    assert len(gradients(*batches)) == 4 * len(batches)
    assert gradients(batches[-1]) == WEIGHTS
