"""Run the cases through TRL's GRPOTrainer, with real steps of a tiny model; runs in TRL's
environment.
"""

import math
import tempfile
from types import SimpleNamespace

import torch
import trl

from grpo_guard.adapters.trl.trainer import GuardedTrainer
from tests.conformance.conformance_cases import (
    JUDGED,
    MASKED,
    OF_A_GROUP,
    SCAFFOLD,
    SCAFFOLDED,
    SIBLING,
    SIZE,
    print_cells,
    reward_of,
)
from tests.trl import tiny_trl


class Guarded(tiny_trl.Captures, GuardedTrainer, tiny_trl.GRPOTrainer):
    pass


def rewards(completions, **columns):
    return [reward_of(text) for text in completions]


def trained(texts, guard, function=rewards, rollout=None, kind=None, extra=None, **settings):
    """Return a trainer after one step over these rows."""
    if kind is None:
        kind, extra = tiny_trl.CapturingTrainer, {}
        if guard is not None:
            kind, extra = Guarded, {"guard": guard}
    with tempfile.TemporaryDirectory() as folder:
        made = tiny_trl.trainer(
            folder, function, kind=kind, extra=extra, rollout=rollout or tiny_trl.peers(*texts),
            max_steps=1, per_device_train_batch_size=len(texts), num_generations=SIZE,
            max_completion_length=96, scale_rewards="none", **settings,
        )  # fmt: skip
        made.train()
    return made


def advantages(made):
    """Return the advantage of each row; None if none of its tokens is in the loss."""
    (found,), (output,) = made.captured, made.outputs
    mask = output["completion_mask"]
    if "tool_mask" in output:
        mask = mask * output["tool_mask"]
    return [a if row.any() else None for a, row in zip(found, mask, strict=True)]


def moved(made):
    """Distance of the weights from their initial values."""
    fresh = tiny_trl.model(made.processing_class)
    pairs = zip(made.model.parameters(), fresh.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def logged(made, name):
    return next((line[name] for line in made.state.log_history if name in line), None)


def sibling(guard):
    return {"advantages": advantages(trained(SIBLING, guard))}


def group(guard):
    return {"advantages": advantages(trained([*OF_A_GROUP, *SIBLING], guard))}


def batch(guard):
    made = trained(OF_A_GROUP, guard)
    loss = logged(made, "loss")
    return {
        "advantages": advantages(made),
        "loss": "finite" if math.isfinite(loss) else str(loss),
        "moved": round(moved(made), 6),
        "reject_rate": logged(made, "guard/reject_rate"),
    }


def wrong_count(guard):
    try:
        trained(SIBLING, guard, function=lambda completions, **columns: [1.0, 0.0, 1.0])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": "none"}


def judged(guard):
    cell = {"advantages": advantages(trained(JUDGED, guard))}
    return cell if guard is None else cell | {"verdicts": guard.ledger.verdicts}


def scaffolded(guard):
    """Rows as a `rollout_func` returns them, with ``env_mask``."""

    def rollout(prompts, trainer):
        tok = trainer.processing_class
        ids = [tok(text=SCAFFOLD + text)["input_ids"] + [tok.eos_token_id] for text in SCAFFOLDED]
        before = len(tok(text=SCAFFOLD)["input_ids"])
        masks = [[0] * before + [1] * (len(row) - before) for row in ids]
        masks[2].append(1)
        return {
            "prompt_ids": [tok(text=p)["input_ids"] for p in prompts], "completion_ids": ids,
            "logprobs": None, "env_mask": masks, "peer": ["a", "b", "c", "d"],
        }  # fmt: skip

    try:
        made = trained(SCAFFOLDED, guard, rollout=rollout)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    cell = {"advantages": advantages(made)}
    return cell if guard is None else cell | {"verdicts": guard.ledger.verdicts}


class Sampled:
    """As if vLLM had sampled: TRL corrects by the sampler's log-probs and masks whole rows."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.use_vllm, self._last_loaded_step = True, -1
        self.vllm_generation = SimpleNamespace(sync_weights=lambda: None)


class PlainSampled(Sampled, tiny_trl.CapturingTrainer):
    pass


class GuardedSampled(Sampled, Guarded):
    pass


def masked(guard):
    """TRL's ``sequence_mask`` removes the second row: its sampler is far from the policy."""

    def rollout(prompts, trainer):
        tok = trainer.processing_class
        asked = [tok(text=p)["input_ids"] for p in prompts]
        ids = [tok(text=t)["input_ids"] + [tok.eos_token_id] for t in MASKED]
        log_probs = []
        for i, (before, said) in enumerate(zip(asked, ids, strict=True)):
            with torch.no_grad():
                logits = trainer.model(torch.tensor([before + said])).logits[0].float()
            exact = logits[len(before) - 1 : -1].log_softmax(-1)[range(len(said)), said].tolist()
            log_probs.append([x - 5.0 if i == 1 else x for x in exact])
        return {"prompt_ids": asked, "completion_ids": ids, "logprobs": log_probs}

    own = {} if guard is None else {"guard": guard, "leave_out_masked": True}
    made = trained(
        MASKED, None, rollout=rollout, kind=PlainSampled if guard is None else GuardedSampled,
        extra=own, vllm_importance_sampling_mode="sequence_mask",
        vllm_importance_sampling_clip_max=3.0,
    )  # fmt: skip
    (output,) = made.outputs
    ratio = output["importance_sampling_ratio"].reshape(len(MASKED), -1)
    found = [a if r.any() else None for a, r in zip(made.captured[0], ratio, strict=True)]
    return {"advantages": found}


CASES = {
    "masked_row": masked,
    "rejected_sibling": sibling,
    "wrong_count": wrong_count,
    "rejected_group": group,
    "rejected_batch": batch,
    "judges_zero": judged,
    "scaffold": scaffolded,
}
ABSENT = {
    "fan_out": "one completion a rollout",
    "final_token": "rewards are of rows; no token has one",
}


torch.manual_seed(0)
print_cells(f"trl {trl.__version__}", CASES, ABSENT)
