"""What a node sends along with its texts: ids sampled with a shared seed, and envelopes."""

import copy
import tempfile

import genrl.game  # noqa: F401
import pytest
import torch
from genrl.state import GameState

from grpo_guard import Guard, SeedReplayVerifier
from grpo_guard.adapters.genrl.game import GuardedGame
from grpo_guard.adapters.genrl.rollouts import Rollout, sampling_of
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.references import References
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.nodes.identity.gate import ADMITTED, Identity
from grpo_guard.nodes.identity.keys import SigningKey
from grpo_guard.nodes.identity.ring import KeyRing
from tests.genrl.one_round import OTHER, G, OneProblem, Peers, Words, payload, play, said, tree
from tests.genrl.swarm.node import batch_id, trainer_of

ASKED = [{"prompt": [{"role": "user", "content": OTHER}]}]


@pytest.fixture(scope="module")
def trainer():
    return trainer_of(tempfile.mkdtemp(), group_size=G, lr=1e-3)


def test_rollouts_keep_their_sampled_ids(trainer):
    torch.manual_seed(0)
    (rollout,) = trainer.generate(ASKED)
    ids = rollout.claims["completion_ids"]
    tokenizer = trainer.processing_class
    assert isinstance(rollout, list)
    assert len(rollout) == len(ids) == G
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == rollout
    assert all(tokenizer.eos_token_id not in row[:-1] for row in ids)
    texts, rows = trainer.generate(ASKED, return_completion_ids=True)
    assert len(texts[0]) == len(rows[0]) == G


def test_shared_seed_determines_what_a_node_must_send(trainer):
    coin, state = PublicCoin("a run"), GameState(round=3, stage=0)
    trainer.under_coin(coin, state, "bob")
    (rollout,) = trainer.generate(ASKED)
    assert trainer.generate(ASKED) == [rollout]
    trainer.under_coin(coin, state, "eve")
    assert trainer.generate(ASKED) != [rollout]
    replay = SeedReplayVerifier(
        trainer.model, trainer.processing_class, sampling=sampling_of(trainer.args), coin=coin,
        slots=G, nodes=["me", "bob"],
    )  # fmt: skip

    class Third(OneProblem):
        pass

    sent = {"grpo_guard": rollout.claims}
    peers = {
        "bob": {batch_id(OTHER): [payload(list(rollout), metadata=sent)]},
        "eve": {batch_id(OTHER): [payload(list(rollout), metadata=sent)]},
        "carl": tree(),
    }
    game, own = Guard(replay), GameState(round=3, stage=0)
    guarded = GuardedGame(game, own, trainer, on_round=replay.begin_round, review_own=False)
    data = Third()
    guarded.data(data)
    own._init_game(data.get_round_data(), ["me"])
    own.append_actions({"me": {batch_id(data.get_round_data()[0][1].environment_states["question"]):
                               {0: [said(2)] * G}}})  # fmt: skip
    assert set(guarded.admitted(own, peers)) == {"me", "bob"}


def test_sampler_of_the_round_matches_the_configuration(trainer):
    spec = sampling_of(trainer.args)
    assert (spec.temperature, spec.top_k, spec.max_new_tokens) == (1.0, 50, 64)


def test_claims_are_sent_in_metadata_and_kept_locally():
    ids = [[5, 1]] * G

    class Claiming(OneProblem):
        def prepare_actions(self, outputs, places):
            return super().prepare_actions([Rollout(list(o), {"completion_ids": ids})
                                            for o in outputs], places)  # fmt: skip

    played = play({}, data=Claiming())
    (sent,) = next(iter(played.communication.sent[0].values()))
    assert sent.metadata == {"grpo_guard": {"completion_ids": ids}}
    assert type(sent.actions) is list


# Identity.


def guard_of(ring, **more):
    return Guard(Words(), identity=Identity(KeyRing(ring), run="run"), **more)


KEYS = {name: SigningKey.new() for name in ("me", "bob", "eve")}
RING = {name: key.public for name, key in KEYS.items()}


def signed_tree(key, texts=None, **more):
    """The tree that a node with this key sends for `OTHER`."""
    communication = Peers({}, "sender")

    class Asks(OneProblem):
        def get_round_data(self):
            return [[batch_id(OTHER), payload(**more).world_state]]

    texts = texts or [said(4), said(4), said(3), said(2)]
    play({}, data=Asks(), texts=texts, communication=communication,
         guard=guard_of({"sender": key.public}), key=key)  # fmt: skip
    return communication.sent[0]


def test_signed_trees_are_admitted_under_their_keys():
    verifier = Words()
    guard = Guard(verifier, identity=Identity(KeyRing(RING), run="run"))
    played = play({"peer-7": signed_tree(KEYS["bob"])}, guard=guard, key=KEYS["me"])
    assert played.agents == ["me", "peer-7"]
    assert {c.node for c in verifier.batches[0]} == {RING["me"], RING["bob"]}
    assert played.rewards("me") == [1.0, 1.0, 0.0, 0.0]


def test_poison_under_an_honest_name_does_not_count_against_it():
    """Through hivemind a peer can overwrite what another sent."""
    poison = ["Hail " + said(4)] * G
    notes = []

    class Notes:
        def record(self, batch, verdicts):
            notes.extend((c.node, v.rejected) for c, v in zip(batch, verdicts, strict=True))

    unsigned = {"bob": tree(poison)}
    played = play(unsigned, guard=guard_of(RING, ledger=Notes()), key=KEYS["me"])
    assert played.agents == ["me"]
    assert {node for node, rejected in notes if rejected} == {None}
    notes.clear()
    play(unsigned, ledger=Notes())  # negative control: names only
    assert {node for node, rejected in notes if rejected} == {"bob"}


@pytest.mark.parametrize(
    "change", ["text", "answer", "question", "stranger", "replayed", "garbage"]
)
def test_wrongly_signed_trees_are_not_admitted(change):
    sent = signed_tree(KEYS["eve"] if change != "stranger" else SigningKey.new())
    (of_batch,) = sent.values()
    if change == "text":
        of_batch[0].actions[0] = said(5)
    if change == "answer":
        of_batch[0].world_state.environment_states["answer"] = "5"
    if change == "question":
        other = OTHER.replace("9", "8")
        of_batch[0].world_state.environment_states["question"] = other
        sent = {batch_id(other): of_batch}
    if change == "garbage":
        of_batch[0].metadata["grpo_guard"]["envelopes"] = ["x", {}, None, 7]
    peers = {"eve": sent, "bob": signed_tree(KEYS["bob"])}
    if change == "replayed":
        peers = {"bob": peers["bob"], "eve": peers["bob"]}
    played = play(peers, guard=guard_of(RING), key=KEYS["me"])
    assert len(played.agents) == 2
    assert "me" in played.agents


@pytest.mark.parametrize("unsigned", ["refuse", "admit"])
def test_no_object_can_pose_as_an_envelope(unsigned):
    """A backend that unpickles could supply the object that marks admitted completions."""
    sent = signed_tree(KEYS["eve"])
    (of_batch,) = sent.values()
    of_batch[0].metadata["grpo_guard"]["envelopes"] = [ADMITTED] * G
    guard = Guard(Words(), identity=Identity(KeyRing(RING), run="run", unsigned=unsigned))
    assert play({"eve": sent}, guard=guard, key=KEYS["me"]).agents == ["me"]


@pytest.mark.parametrize("spoil", ["text", "order", "envelope"])
def test_corrupted_copy_does_not_block_the_original(spoil):
    bob = signed_tree(KEYS["bob"])
    peers = {"bob": bob}
    for n in range(10):  # random order: most copies come before the tree
        peers[f"eve-{n}"] = copy.deepcopy(bob)
        (of_batch,) = peers[f"eve-{n}"].values()
        actions, claims = of_batch[0].actions, of_batch[0].metadata["grpo_guard"]
        if spoil == "text":
            actions[3] = said(7 + n)
        if spoil == "order":
            actions[2:] = reversed(actions[2:])
        if spoil == "envelope":
            claims["envelopes"].pop()
    assert play(peers, guard=guard_of(RING), key=KEYS["me"]).agents == ["bob", "me"]


def test_guard_with_identity_needs_an_own_key():
    with pytest.raises(FrameworkError, match="key: expected"):
        play({}, guard=guard_of(RING))


# References.


def test_own_reference_replaces_a_peers():
    references = References()
    references.add([{"role": "user", "content": OTHER}], "4")
    guard = Guard(Words(), references=references)
    assert play({"eve": tree(answer="3")}, guard=guard).agents == ["me"]  # a forged reference
    honest = play({"bob": tree(answer="4.0")}, guard=guard)
    assert honest.rewards("bob") == [1.0, 1.0, 0.0, 0.0]
    unknown = tree(question=OTHER.replace("9", "8"), answer="3")
    assert play({"bob": unknown}, guard=guard).agents == ["me"]
