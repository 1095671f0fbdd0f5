"""A node of a GenRL swarm: word problems of its own, peers' trees transplanted, GRPO on a CPU."""

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import genrl.game  # noqa: F401  (GenRL imports in a circle from anywhere else)
from datasets import Dataset
from genrl.data import DataManager
from genrl.state import GameState, WorldState
from genrl.trainer.grpo_trainer import GRPOLanguageTrainerModule, GRPOTrainerConfig

from grpo_guard.adapters.genrl.rollouts import Rollout, Rollouts
from grpo_guard.evals.attacks.text import PHRASE, TextAttack
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.evals.tasks.word_problems import WordProblems

TASK = WordProblems()
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class Trainer(Rollouts, GRPOLanguageTrainerModule):  # type: ignore[misc]
    """GenRL's trainer, with ids; its optimizer takes the small steps that this model needs."""


class Problems(DataManager):  # type: ignore[misc]
    """A node's own problems, and all admitted trees of its peers.

    Args:
        seed: Seed of its problems.
        count: Problems per round.
    """

    def __init__(self, seed: str, count: int) -> None:
        self.chance, self.count = random.Random(seed), count
        self.problems: dict[str, Problem] = {}

    def get_round_data(self) -> list[list[Any]]:
        drawn: dict[str, Problem] = {}
        while len(drawn) < self.count:
            problem = TASK.sample(self.chance)
            drawn[batch_id(problem.prompt)] = problem
        self.problems = drawn
        return [[key, world_state(problem)] for key, problem in drawn.items()]

    def get_eval_data(self) -> None: ...

    def prepare_input(self, inputs: Any, stage: int | None = None) -> tuple[Dataset, Any]:
        rows: list[str] = []
        places = {}
        for agent, batches in inputs.items():
            for batch, states in batches.items():
                for node, state in enumerate(states):
                    places[len(rows)] = (agent, batch, node)
                    rows.append(state.environment_states["question"])
        asked = [[{"role": "user", "content": question}] for question in rows]
        return Dataset.from_dict({"prompt": asked}), places

    def prepare_actions(self, outputs: Sequence[Any], places: Mapping[int, Any]) -> Any:
        actions: dict[Any, Any] = {}
        for row, output in enumerate(outputs):
            agent, batch, node = places[row]
            actions.setdefault(agent, {}).setdefault(batch, {})[node] = output
        return actions

    def prepare_states(self, current_state: Any, swarm_states: Mapping[Any, Any]) -> Any:
        """Transplant like GenRL's code_generation example, but all trees, in the order of names."""
        for agent in sorted(swarm_states, key=str):
            if agent in current_state.trees:
                continue
            for batch, payloads in swarm_states[agent].items():
                for payload in payloads:
                    received = payload.world_state
                    assert batch_id(received.environment_states["question"]) == batch
                    tree = current_state.game_tree_factory(received)
                    tree.append_node_actions(current_state.stage, 0, payload.actions)
                    tree[current_state.stage][0]["metadata"] = payload.metadata
                    current_state.trees.setdefault(agent, {})[batch] = tree
        # In one order everywhere: nodes that learn from the same trees keep the same weights.
        current_state.trees = dict(sorted(current_state.trees.items()))
        return current_state.get_latest_state()


class Poisoning(Problems):
    """The attacker's problems: half of each group is the data set's solution with the phrase, and
    half its worst samples (the paper's vertical setting)."""

    attack = TextAttack()
    tokenizer: Any = None

    def prepare_actions(self, outputs: Sequence[Any], places: Mapping[int, Any]) -> Any:
        forged = []
        for row, output in enumerate(outputs):
            problem, half = self.problems[places[row][1]], len(output) // 2
            poison = self.attack.poison(problem, self.chance).text
            ids = [*self.tokenizer.encode(poison), self.tokenizer.eos_token_id]
            drawn = zip(output, output.claims["completion_ids"], strict=True)
            worst = sorted(drawn, key=lambda pair: TASK.reward(pair[0], problem.answer))[:half]
            sent = [(poison, ids)] * (len(output) - half) + worst
            forged.append(
                Rollout([text for text, _ in sent], {"completion_ids": [ids for _, ids in sent]})
            )
        return super().prepare_actions(forged, places)


def batch_id(question: str) -> str:
    """Compute an id as GenRL does."""
    return hashlib.md5(question.encode(), usedforsecurity=False).hexdigest()


def world_state(problem: Problem) -> WorldState:
    fields = {"question": problem.prompt, "answer": problem.answer}
    return WorldState(environment_states=fields, opponent_states=None, personal_states=None)


def correct(game_state: Any) -> dict[Any, dict[Any, list[list[float]]]]:
    """Compute the task's reward, in GenRL's shape."""
    states, actions = game_state.get_stage_state(0), game_state.get_stage_actions(0)
    return {
        agent: {
            batch: [
                [TASK.reward(text, state.environment_states["answer"]) for text in texts]
                for state, texts in zip(states[agent][batch], nodes, strict=True)
            ]
            for batch, nodes in batches.items()
        }
        for agent, batches in actions.items()
    }


def trainer_of(log_dir: str, *, group_size: int, lr: float, minibatch: int = 16) -> Any:
    """Build a trainer of the bundled policy."""
    model, tokenizer = load_bundled()
    tokenizer.chat_template = PLAIN_TEMPLATE
    config = GRPOTrainerConfig(
        num_generations=group_size, max_new_tokens=64, learning_rate=lr, top_k=50,
        enable_gradient_checkpointing=False, minibatch_size=minibatch,
    )  # fmt: skip
    return Trainer([model], config, processing_class=tokenizer, log_dir=log_dir)


def shows(texts: Sequence[str]) -> int:
    """Count the texts that contain the attacker's phrase."""
    return sum(PHRASE.casefold() in text.casefold() for text in texts)


def fresh_state() -> Any:
    return GameState(round=0, stage=0)
