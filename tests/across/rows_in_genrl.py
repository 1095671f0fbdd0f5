"""Compute advantages with GenRL's GRPO trainer in a guarded game; runs in GenRL's environment.

The first group is this node's own tree; a peer sends the others through the gate.
"""

from genrl.trainer.grpo_trainer import GRPOLanguageTrainerModule, GRPOTrainerConfig

from grpo_guard.adapters.genrl.gate import Admission
from grpo_guard.evals.policies.bundled import load_bundled
from tests.across.same_rows import ROWS, SIZE, TEXTS, print_advantages, reward_of
from tests.genrl import one_round
from tests.genrl.one_round import play, tree
from tests.genrl.swarm.node import PLAIN_TEMPLATE

QUESTIONS = [one_round.QUESTION, *(f"What is {i} + {i}?" for i in range(1, len(ROWS) // SIZE))]
GROUPS = [TEXTS[start : start + SIZE] for start in range(0, len(TEXTS), SIZE)]


class Captures(GRPOLanguageTrainerModule):
    """GenRL's trainer, which generates the first group and records each group's advantages."""

    def generate(self, inputs, return_completion_ids=False, stage=0):
        return [list(GROUPS[0]) for _ in range(len(inputs))]

    def step(self, stage, state, data_manager, reward_manager, global_step):
        # Read GenRL's own order of rows with the call that its step makes.
        inputs, _ = data_manager.prepare_input(state.get_stage_state(stage), stage)
        self.asked = [prompt[0]["content"] for prompt in inputs["prompt"]]
        return super().step(stage, state, data_manager, reward_manager, global_step)

    def _return_minibatch(self, model_inputs, *others):
        self.found = model_inputs["advantages"].view(-1, SIZE).tolist()
        return super()._return_minibatch(model_inputs, *others)


def rewards(game_state):
    return {
        agent: {
            batch: [[reward_of(text) for text in texts] for texts in nodes]
            for batch, nodes in batches.items()
        }
        for agent, batches in game_state.get_stage_actions(0).items()
    }


def advantages(folder, guard, scaled):
    model, tokenizer = load_bundled()
    tokenizer.chat_template = PLAIN_TEMPLATE
    config = GRPOTrainerConfig(
        num_generations=SIZE, minibatch_size=len(ROWS), enable_gradient_checkpointing=False
    )
    trainer = Captures([model], config, processing_class=tokenizer, log_dir=folder)
    sent = {}
    for texts, question in zip(GROUPS[1:], QUESTIONS[1:], strict=True):
        sent |= tree(texts, question)
    # Admit all trees, whatever is rejected: the comparison is about what each group's rows earn.
    taken = {"admission": Admission(rejected=0.9, per_agent=len(GROUPS))}
    play(
        {"peer": sent}, trainer=trainer, rewards=rewards, guard=guard, gate=guard is not None,
        **({} if guard is None else taken),
    )  # fmt: skip
    of_question = dict(zip(trainer.asked, trainer.found, strict=True))
    return [value for question in QUESTIONS for value in of_question[question]]


print_advantages(advantages, scales=(True,))
