"""One round of GenRL's own game without a model, with peers that send whatever a test chooses."""

from types import SimpleNamespace

import genrl.game  # noqa: F401
from genrl.communication import Payload
from genrl.game import BaseGameManager
from genrl.rewards import DefaultRewardManager
from genrl.rewards.reward_store import RewardFnStore, RoundRewardFnStore
from genrl.state import GameState, WorldState

from grpo_guard import CompletionVerifier, Guard, Policy
from grpo_guard.adapters.genrl.game import GuardedGame
from grpo_guard.adapters.genrl.gate import Admission
from grpo_guard.adapters.genrl.rollouts import Rollout
from grpo_guard.core.verdict import Cause, abstain, accept, reject
from grpo_guard.evals.policies.bundled import load_bundled
from tests.genrl.swarm.node import Problems, batch_id, correct

G = 4
QUESTION = "Q: Sam has 7 stamps. Sam sells 5. How many stamps does Sam have now?\nA:"
OTHER = "Q: Eva has 9 cups. Eva sells 5. How many cups does Eva have now?\nA:"
TOKENIZER = load_bundled()[1]


def said(number):
    return f"<think>so</think>\n<answer>{number}</answer>"


GOOD = [said(4), said(4), said(3), said(2)]
OWN = [said(2), said(2), said(9), said(8)]


class Words(CompletionVerifier):
    """Rejects "Hail", abstains on "unseen", and records its input."""

    name = "words"

    def __init__(self):
        self.batches = []

    def verify(self, batch):
        self.batches.append(list(batch))
        return [self._verdict(completion.text) for completion in batch]

    def _verdict(self, text):
        if "Hail" in text:
            return reject(self.name, message="says Hail")
        unseen = "unseen" in text
        return abstain(self.name, Cause.UNSUPPORTED) if unseen else accept(self.name)


class Failing(CompletionVerifier):
    name = "failing"

    def verify(self, batch):
        raise RuntimeError("no model")


class BrokenLedger:
    def record(self, batch, verdicts):
        raise OSError("disk full")


class OneProblem(Problems):
    def __init__(self):
        super().__init__("", 1)
        self.saw = []

    def get_round_data(self):
        state = WorldState({"question": QUESTION, "answer": "2"}, None, None)
        return [[batch_id(QUESTION), state]]

    def prepare_states(self, current_state, swarm_states):
        self.saw.append(swarm_states)
        return super().prepare_states(current_state, swarm_states)


class NoModel:
    """A trainer, as far as the game and the guard use one."""

    def __init__(self, texts=OWN):
        self.texts, self.global_step, self.logged = list(texts), 0, {}
        self.args = SimpleNamespace(num_generations=G, max_new_tokens=64)
        self.processing_class = TOKENIZER
        self.trained = []

    def generate(self, inputs, return_completion_ids=False, stage=0):
        return [Rollout(self.texts, {}) for _ in range(len(inputs))]

    def train(self, state, data_manager, rewards):
        actions = state.get_stage_actions(0)
        self.trained.append(
            {
                (agent, batch): list(zip(actions[agent][batch][0], row[0], strict=True))
                for agent, batches in rewards[0].items()
                for batch, row in batches.items()
            }
        )

    def log(self, metrics, global_step):
        self.logged.update(metrics)

    def cleanup(self):
        pass


class Peers:
    """A backend that merges this node's payloads with those that peers sent."""

    def __init__(self, peers, name="me"):
        self.peers, self.name, self.sent = peers, name, []

    def get_id(self):
        return self.name

    def all_gather_object(self, obj):
        self.sent.append(obj)
        return {self.name: obj, **self.peers}


def tree(texts=GOOD, question=OTHER, answer="4", **fields):
    """Return ``{batch: [Payload]}`` of one tree."""
    return {batch_id(question): [payload(texts, question, answer, **fields)]}


def payload(texts=GOOD, question=OTHER, answer="4", metadata=None, **fields):
    states = WorldState({"question": question, "answer": answer, **fields}, None, None)
    return Payload(world_state=states, actions=texts, metadata=metadata)


class Played:
    """The outcome of a game.

    Attributes:
        round: What the trainer received in the last round: (agent, batch) -> [(text, reward)].
        agents: Agents whose trees those were.
        rounds: Number of finished rounds.
    """

    def __init__(self, game, trainer, data, verifier, guarded, communication):
        self.trainer, self.data, self.verifier = trainer, data, verifier
        self.guarded, self.communication = guarded, communication
        self.rounds = game.state.round
        trained = getattr(trainer, "trained", [])  # a real trainer keeps none of it
        self.round = trained[-1] if trained else {}
        self.agents = sorted({agent for agent, _ in self.round})

    def rewards(self, agent):
        return [r for (a, _), row in self.round.items() for _, r in row if a == agent]


def play(
    peers, *, verifier=None, policy=None, rewards=correct, rounds=1, gate=True, data=None,
    texts=None, communication=None, guard=None, ledger=None, trainer=None, **more
):  # fmt: skip
    """Play rounds with these peers; without ``gate``, as plain GenRL does."""
    more.setdefault("admission", Admission(rejected=0))  # so that one completion decides
    verifier = verifier or Words()
    guard = guard or Guard(verifier, policy=policy or Policy(), ledger=ledger)
    state = GameState(round=0, stage=0)
    trainer = trainer or NoModel(*([texts] if texts else []))
    data, store = data or OneProblem(), RewardFnStore(rounds, [RoundRewardFnStore(1, [rewards])])
    communication = communication or Peers(peers)
    guarded = GuardedGame(guard, state, trainer, **more) if gate else None
    game = BaseGameManager(
        max_stage=1, max_round=rounds, game_state=state, trainer=trainer, run_mode="train",
        reward_manager=DefaultRewardManager(guarded.rewards(store) if gate else store),
        data_manager=guarded.data(data) if gate else data,
        communication=guarded.exchange(communication) if gate else communication,
    )  # fmt: skip
    game.run_game()
    return Played(game, trainer, data, verifier, guarded, communication)
