"""Two honest nodes and one that teaches a phrase, through GenRL's own game managers."""

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from genrl.game import BaseGameManager
from genrl.rewards import DefaultRewardManager
from genrl.rewards.reward_store import RewardFnStore, RoundRewardFnStore

from grpo_guard import presets
from grpo_guard.adapters.genrl.game import GuardedGame
from grpo_guard.adapters.genrl.gate import Admission
from grpo_guard.adapters.genrl.rollouts import sampling_of
from grpo_guard.guard import Guard
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.logprob.replay.verifier import SeedReplayVerifier
from tests.genrl.swarm.exchange import InProcess, Table, Turns
from tests.genrl.swarm.node import (
    Poisoning,
    Problems,
    correct,
    fresh_state,
    shows,
    trainer_of,
)  # fmt: skip

HONEST: Final = ("alice", "bob")
MALICIOUS: Final = "mallory"
NAMES: Final = (*HONEST, MALICIOUS)
COIN: Final = PublicCoin("genrl-study")
MakeGuard: TypeAlias = Callable[[Any, Sequence[str]], tuple[Guard, Callable[[int], None] | None]]
"""From a node's trainer and all nodes' names to its guard, and an optional callback per round."""
BUSY: Final = 7200.0  # seconds until a node gives up on the others


@dataclass(frozen=True, slots=True)
class SwarmSettings:
    """Everything that determines a run, except guard and backend.

    Args:
        rounds: Rounds of the game.
        trees: Problems that each node asks in a round.
        group_size: G.
        lr: Adam's; one million parameters need about 1e-3 to move within 20 rounds.
        rejected: As for `Admission`.
        minibatch: Completions per optimizer step. GenRL's default is 2, with which each round takes
            three times as long.
        seed: Determines problems and samples.
    """

    rounds: int = 20
    trees: int = 4
    group_size: int = 8
    lr: float = 1e-3
    rejected: float = 0.4
    minibatch: int = 16
    seed: int = 0


@dataclass(slots=True)
class Played:
    """An honest node's record.

    Args:
        showing: For each round, how many of its own completions show the phrase, of how many.
        admitted: Trees that were admitted, by author.
        malicious: Number of the attacker's among them, per round.
        rounds: Rounds that it finished.
    """

    showing: list[tuple[int, int]] = field(default_factory=list)
    admitted: Counter[str] = field(default_factory=Counter)
    malicious: list[int] = field(default_factory=list)
    rounds: int = 0


class Watched(Problems):
    """The honest nodes' data manager, which records what arrived and what was admitted."""

    def __init__(self, seed: str, count: int, played: Played, names: Mapping[str, str]) -> None:
        super().__init__(seed, count)
        self.played, self.names = played, names

    def prepare_actions(self, outputs: Any, places: Mapping[int, Any]) -> Any:
        texts = [text for row in outputs for text in row]
        self.played.showing.append((shows(texts), len(texts)))
        return super().prepare_actions(outputs, places)

    def prepare_states(self, current_state: Any, swarm_states: Mapping[Any, Any]) -> Any:
        count = Counter[str]()
        for agent, batches in swarm_states.items():
            count[self.names[agent]] += sum(map(len, batches.values()))
        self.played.admitted.update(count)
        self.played.malicious.append(count[MALICIOUS])
        return super().prepare_states(current_state, swarm_states)


def swarm(
    settings: SwarmSettings,
    guard: MakeGuard | None = None,
    *,
    attacked: bool = True,
    backends: Mapping[str, Any] | None = None,
    turns: Turns | None = None,
) -> dict[str, Played]:
    """Play a run; return each honest node's record, by name.

    Args:
        settings: The run's settings.
        guard: Makes each honest node's guard; None = without guards.
        attacked: Whether the third node teaches the phrase, or is as honest as the others.
        backends: Each node's backend; None = in process.
        turns: The backends' turns.
    """
    turns = turns or Turns(settings.seed)
    if backends is None:
        table = Table(NAMES)
        backends = {name: InProcess(name, table, turns) for name in NAMES}
    played = {name: Played() for name in NAMES}
    names = {backend.get_id(): name for name, backend in backends.items()}
    games = {
        name: _game(names, name, settings, guard, backends[name], played[name], attacked)
        for name in NAMES
    }

    def run(name: str) -> None:
        turns.take(name)
        try:
            games[name].run_game()
        finally:
            played[name].rounds = games[name].state.round
            turns.give(name)

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BUSY)
    return {name: played[name] for name in (HONEST if attacked else NAMES)}


def _game(
    names: Mapping[str, str],
    name: str,
    settings: SwarmSettings,
    guard: MakeGuard | None,
    communication: Any,
    played: Played,
    attacked: bool,
) -> Any:
    state = fresh_state()
    trainer = trainer_of(
        tempfile.mkdtemp(), group_size=settings.group_size, lr=settings.lr,
        minibatch=settings.minibatch,
    )  # fmt: skip
    if guard is not same_weights:  # which needs no coin: nodes sample as GenRL does
        trainer.under_coin(COIN, state, communication.get_id())
    malicious = attacked and name == MALICIOUS
    seed = f"{settings.seed} {name}"
    data: Any = (
        Poisoning(seed, settings.trees)
        if malicious
        else Watched(seed, settings.trees, played, names)
    )
    store: Any = RoundRewardFnStore(1, [correct])
    if malicious:
        data.tokenizer = trainer.processing_class
        communication = GuardedGame(presets.failures_only(), state, trainer).exchange(communication)
    if guard is not None and not malicious:
        the_guard, on_round = guard(trainer, sorted(names))
        # A node need not check how its own completions were drawn.
        own = guard is different_weights
        guarded = GuardedGame(
            the_guard, state, trainer, admission=Admission(rejected=settings.rejected),
            on_round=on_round, review_own=own,
        )  # fmt: skip
        store = guarded.rewards(store)
        data = guarded.data(data)
        communication = guarded.exchange(communication)
    return BaseGameManager(
        max_stage=1, max_round=settings.rounds, game_state=state,
        reward_manager=DefaultRewardManager(RewardFnStore(settings.rounds, [store])),
        trainer=trainer, data_manager=data, communication=communication,
        run_mode="evaluate" if malicious else "train",
    )  # fmt: skip


def different_weights(trainer: Any, nodes: Sequence[str]) -> tuple[Guard, None]:
    del trainer, nodes
    return presets.different_weights(), None


def same_weights(trainer: Any, nodes: Sequence[str]) -> tuple[Guard, None]:
    """Use the model that is trained: honest nodes here learn from the same trees."""
    del nodes
    sampling = sampling_of(trainer.args)
    return presets.same_weights(trainer.model, trainer.processing_class, sampling), None


def shared_seed(trainer: Any, nodes: Sequence[str]) -> tuple[Guard, Callable[[int], None]]:
    size = trainer.args.num_generations
    replay = SeedReplayVerifier(
        trainer.model, trainer.processing_class, sampling=sampling_of(trainer.args), coin=COIN,
        slots=size, nodes=nodes,
    )  # fmt: skip
    return Guard(replay), replay.begin_round
