"""Run the cases through the data code of Atropos's trainer; runs in Atropos's environment."""

from importlib.metadata import version

from example_trainer.data import pad_data_to_good_offset

from grpo_guard.adapters.atropos.groups import GroupGuard
from grpo_guard.guard.metrics import metrics
from tests.conformance.conformance_cases import (
    JUDGED,
    MASKED,
    OF_A_GROUP,
    SCAFFOLD,
    SCAFFOLDED,
    SIBLING,
    print_cells,
    reward_of,
)
from tests.helpers.characters import END, Characters

WORDS = Characters()
PROMPT = WORDS.encode("?")


def group(texts, *, before="", masked=(), longer=()):
    tokens = [[*PROMPT, *WORDS.encode(before + text), END] for text in texts]
    first = len(PROMPT) + len(WORDS.encode(before))
    masks = [[-100] * first + row[first:] for row in tokens]
    for i in masked:
        masks[i] = [-100] * len(tokens[i])
    for i in longer:
        masks[i] = [*masks[i], END]
    return {
        "tokens": tokens, "masks": masks, "scores": [reward_of(text) for text in texts],
        "overrides": None,
    }  # fmt: skip


def trained(given, guard):
    """Return the advantages of a group's rows and the guard's verdicts.

    The advantage is None for a row without a trained token, or whose only token has the advantage
    0.
    """
    review = None
    if guard is not None:
        given, review = GroupGuard(guard, WORDS).settle(given)
    packed = pad_data_to_good_offset({"batch": [given]}, len(given["tokens"]), False)
    found = [value for batch in packed[2] for value in batch.flatten().tolist()]
    kept = [sum(m != -100 for m in mask) for mask in given["masks"]]
    marks = given.get("overrides") or [None] * len(kept)
    zero = [bool((mark or {}).get("set_advantage_to_zero")) for mark in marks]
    return [None if z or not k else a for a, k, z in zip(found, kept, zero, strict=True)], review


def cell(texts, **more):
    return lambda guard: {"advantages": trained(group(texts, **more), guard)[0]}


def judged(guard):
    found = {"advantages": trained(group(JUDGED), guard)[0]}
    return found if guard is None else found | {"verdicts": guard.ledger.verdicts}


def scaffolded(guard):
    try:
        found = {"advantages": trained(group(SCAFFOLDED, before=SCAFFOLD, longer=[2]), guard)[0]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return found if guard is None else found | {"verdicts": guard.ledger.verdicts}


def two_groups(guard):
    found = trained(group(OF_A_GROUP), guard)[0] + trained(group(SIBLING), guard)[0]
    return {"advantages": found}


def batch(guard):
    found, review = trained(group(OF_A_GROUP), guard)
    figures = {} if review is None else metrics(review.verdicts)
    return {"advantages": found, "reject_rate": figures.get("guard/reject_rate")}


def wrong_count(guard):
    given = group(SIBLING)
    given["scores"] = given["scores"][:3]
    try:
        found, _ = trained(given, guard)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": "none", "advantages": found}


CASES = {
    "rejected_sibling": cell(SIBLING),
    "masked_row": cell(MASKED, masked=[1]),
    "wrong_count": wrong_count,
    "rejected_group": two_groups,
    "rejected_batch": batch,
    "judges_zero": judged,
    "scaffold": scaffolded,
}
ABSENT = {
    "fan_out": "one row a rollout",
    "final_token": "scores are of rows; no token has one",
}
print_cells(f"atroposlib {version('atroposlib')}", CASES, ABSENT, tokenizer=WORDS)
