"""Compute advantages with Atropos's data code behind guarded groups, in Atropos's environment."""

from example_trainer.data import pad_data_to_good_offset

from grpo_guard.adapters.atropos.groups import GroupGuard
from tests.across.same_rows import SIZE, TEXTS, print_advantages, reward_of

# One token id per text: the test is about scores, and ids must decode to the text.
WORDS = {i + 3: text for i, text in enumerate(TEXTS)}


class Tokenizer:
    def decode(self, ids, skip_special_tokens=False):
        return "".join(WORDS.get(token, "") for token in ids)


def advantages(folder, guard, scaled):
    groups = []
    for start in range(0, len(TEXTS), SIZE):
        rows = range(start, start + SIZE)
        group = {
            "tokens": [[2, i + 3] for i in rows],
            "masks": [[-100, i + 3] for i in rows],
            "scores": [reward_of(TEXTS[i]) for i in rows],
            "overrides": None,
        }
        groups.append(group if guard is None else GroupGuard(guard, Tokenizer()).settle(group)[0])
    found = pad_data_to_good_offset({"batch": groups}, len(TEXTS), False)[2]
    return [value for batch in found for value in batch.flatten().tolist()]


print_advantages(advantages, scales=(True,))
