"""A watching guard with the real GRPOTrainer and RLOOTrainer: identical weights."""

import pytest
import torch

from grpo_guard import Guard, Policy
from grpo_guard.adapters.trl.trainer import GuardedTrainer
from grpo_guard.core.verdict import Cause, abstain, accept, reject
from grpo_guard.guard.framework import FrameworkError
from tests.helpers.rule_verifiers import NoWord
from tests.trl import tiny_trl

SENT = ("12", "Hail", "3", "unseen")
REWARD = {"12": 1.0, "Hail": 5.0, "3": 2.0, "unseen": 0.5}
WATCH = Policy("keep", "skip", "scale", max_abstain_rate=0.0, abstain_window=1)


class Guarded(tiny_trl.Captures, GuardedTrainer, tiny_trl.GRPOTrainer):
    pass


class GuardedRLOO(tiny_trl.Captures, GuardedTrainer, tiny_trl.RLOOTrainer):
    pass


class PlainRLOO(tiny_trl.Captures, tiny_trl.RLOOTrainer):
    pass


class Unsure(NoWord):
    """Rejects "Hail" and abstains on "unseen"."""

    def verify(self, batch):
        said = super().verify(batch)
        pairs = zip(batch, said, strict=True)
        return [
            abstain(self.name, Cause.UNSUPPORTED) if c.text == "unseen" else v for c, v in pairs
        ]


def by_text(completions, **columns):
    return [REWARD[text] for text in completions]


async def length(completions, **columns):
    return [None if text == "3" else float(len(text)) for text in completions]


def trained(folder, functions, kind, **settings):
    extra = settings.pop("extra", None)
    settings = {"rollout": tiny_trl.peers(*SENT), "log_completions": True} | settings
    made = tiny_trl.trainer(folder, functions, kind=kind, extra=extra, **settings)
    made.train()
    return made


def same(one, other):
    assert len(one.captured) == len(other.captured) == 2
    pairs = [*zip(one.captured, other.captured, strict=True)]
    pairs += zip(one.model.parameters(), other.model.parameters(), strict=True)
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs)


def logged(trainer, name):
    return [row[name] for row in trainer.state.log_history if name in row]


@pytest.mark.parametrize("weights", [pytest.param(None, marks=pytest.mark.slow), [1.0, -0.5]])
def test_decorated_functions_train_as_without_a_guard(tmp_path, weights):
    functions = [by_text, length]
    plain = trained(tmp_path, functions, tiny_trl.CapturingTrainer, reward_weights=weights)
    wrapped = Guard(Unsure(), policy=WATCH)(functions)
    made = trained(tmp_path, wrapped, tiny_trl.CapturingTrainer, reward_weights=weights)
    assert same(plain, made)
    assert logged(made, "guard/reject_rate") == [0.25, 0.25]
    assert logged(made, "guard/abstain_rate") == [0.25, 0.25]


class EveryOther(NoWord):
    """Rejects every odd position, whatever it contains."""

    def verify(self, batch):
        return [reject(self.name) if i % 2 else accept(self.name) for i in range(len(batch))]


@pytest.mark.parametrize("beta", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_rloo_adds_its_kl_to_watched_rewards(tmp_path, beta):
    def ids_summed(completions, completion_ids, **columns):
        return [float(sum(ids)) for ids in completion_ids]

    reference = {"beta": beta, "reference": beta > 0, "rollout": None}
    without = trained(tmp_path, [ids_summed], PlainRLOO, **reference)
    extra = {"guard": Guard(EveryOther(), policy=WATCH)}
    made = trained(tmp_path, [ids_summed], GuardedRLOO, extra=extra, **reference)
    assert same(without, made)
    assert logged(made, "guard/reject_rate") == [0.5, 0.5]


@pytest.mark.parametrize("beta", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_guarded_trainer_trains_as_an_unguarded_one(tmp_path, beta):
    reference = {"beta": beta, "reference": beta > 0}
    without = trained(tmp_path, [by_text, length], tiny_trl.CapturingTrainer, **reference)
    extra = {"guard": Guard(Unsure(), policy=WATCH)}
    made = trained(tmp_path, [by_text, length], Guarded, extra=extra, **reference)
    assert same(without, made)
    assert logged(made, "guard/reject_rate") == [0.25, 0.25]
    shown = list(made._logs["extra"]["guard"])[:4]
    assert [row.split(":")[0] for row in shown] == ["accept", "reject", "accept", "abstain"]


def test_masking_spans_is_refused_while_watching(tmp_path):
    for name in ("mask_spans", "leave_out_masked"):
        extra = {"guard": Guard(Unsure(), policy=WATCH), name: True}
        with pytest.raises(FrameworkError, match=f"{name} removes .* and on_reject"):
            trained(tmp_path, [by_text], Guarded, extra=extra)
