"""Run the cases through GenRL's GRPO trainer in a guarded game; runs in GenRL's environment.

GenRL cannot remove a row from a group: a row that the guard leaves out gets its group's mean as
reward, and so the advantage 0. It counts here as a row that trains nothing.
"""

import copy
import logging
import math
import tempfile
from importlib.metadata import version

from genrl.logging_utils.global_defs import get_logger
from genrl.trainer.grpo_trainer import GRPOLanguageTrainerModule, GRPOTrainerConfig

from grpo_guard.evals.policies.bundled import load_bundled
from tests.conformance.conformance_cases import (
    JUDGED,
    OF_A_GROUP,
    SIBLING,
    SIZE,
    print_cells,
    reward_of,
)
from tests.genrl import one_round
from tests.genrl.one_round import play
from tests.genrl.swarm.node import PLAIN_TEMPLATE


class Errors(logging.Handler):
    """Captures the exception that GenRL logs when it ends a game: GenRL itself raises none."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.errors = []

    def emit(self, record):
        if record.exc_info:
            self.errors.append(record.exc_info[1])


ERRORS = Errors()
get_logger().addHandler(ERRORS)


class Captures(GRPOLanguageTrainerModule):
    """GenRL's trainer, which returns the case's answers and records advantages and loss."""

    def generate(self, inputs, return_completion_ids=False, stage=0):
        return [list(self.texts) for _ in range(len(inputs))]

    def train(self, *given):
        try:
            return super().train(*given)
        except Exception as error:  # otherwise GenRL goes on silently
            ERRORS.errors.append(error)
            raise

    def _return_minibatch(self, model_inputs, *others):
        self.found = model_inputs["advantages"].view(-1, SIZE).tolist()
        return super()._return_minibatch(model_inputs, *others)

    def log(self, metrics, *others):
        self.logged |= metrics
        return super().log(metrics, *others)


def rewards_of(texts):
    return [reward_of(text) for text in texts]


def trained(texts, guard, pay=rewards_of):
    """Run one round with these completions and return the trainer and how far its weights moved."""
    model, tokenizer = load_bundled()
    tokenizer.chat_template = PLAIN_TEMPLATE
    before = copy.deepcopy(model.state_dict())
    config = GRPOTrainerConfig(
        num_generations=SIZE, minibatch_size=SIZE, enable_gradient_checkpointing=False
    )

    def rewards(game_state):
        return {
            agent: {batch: [[*pay(texts)] for texts in nodes] for batch, nodes in batches.items()}
            for agent, batches in game_state.get_stage_actions(0).items()
        }

    with tempfile.TemporaryDirectory() as folder:
        trainer = Captures([model], config, processing_class=tokenizer, log_dir=folder)
        trainer.texts, trainer.logged, trainer.found = texts, {}, []
        own = {} if guard is None else {"guard": guard}
        ERRORS.errors.clear()
        play({}, trainer=trainer, rewards=rewards, gate=guard is not None, **own)
    if ERRORS.errors:
        raise ERRORS.errors[0]
    after = model.state_dict()
    far = max(float((after[name] - value).abs().max()) for name, value in before.items())
    return trainer, far


def advantages(texts, guard):
    told = len(guard.ledger.verdicts) if guard is not None else 0
    trainer, far = trained(texts, guard)
    (found,) = trainer.found or [[0.0] * SIZE]  # GenRL skips the step if every reward is 0
    verdicts = [["accept", ""]] * SIZE if guard is None else guard.ledger.verdicts[told:]
    rows = [
        None if verdict[0] != "accept" and abs(value) < 1e-6 else value
        for value, verdict in zip(found, verdicts, strict=True)
    ]
    return rows, trainer, far


def sibling(guard):
    return {"advantages": advantages(SIBLING, guard)[0]}


def group(guard):
    return {"advantages": advantages(OF_A_GROUP, guard)[0] + advantages(SIBLING, guard)[0]}


def batch(guard):
    rows, trainer, far = advantages(OF_A_GROUP, guard)
    loss = next((float(v) for name, v in trainer.logged.items() if "loss" in name), math.nan)
    return {
        "advantages": rows,
        "loss": "finite" if math.isfinite(loss) else str(loss),
        "moved": round(far, 6),
        "reject_rate": trainer.logged.get("guard/reject_rate"),
    }


def judged(guard):
    found = {"advantages": advantages(JUDGED, guard)[0]}
    return found if guard is None else found | {"verdicts": guard.ledger.verdicts}


def wrong_count(guard):
    try:
        trained(SIBLING, guard, pay=lambda texts: [1.0, 0.0, 1.0])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": "none"}


CASES = {
    "rejected_sibling": sibling,
    "wrong_count": wrong_count,
    "rejected_group": group,
    "rejected_batch": batch,
    "judges_zero": judged,
}
ABSENT = {
    "fan_out": "each stage of a rollout has a reward and a group of its own",
    "masked_row": "it has no masks of rows",
    "final_token": "rewards are of rows; no token has one",
    "scaffold": "it trains on texts, and has no masks of tokens",
}
assert one_round.G == SIZE
print_cells(f"gensyn-genrl {version('gensyn-genrl')}", CASES, ABSENT)
