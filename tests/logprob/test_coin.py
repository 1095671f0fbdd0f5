"""Seeds: one per slot, the same for everyone, and nothing that an attacker can choose freely."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.logprob.coin import PublicCoin, canonical

VECTOR = 13093865488476695161
VECTOR_WITH_BEACON = 14997789350905869485
INDEX = 877
SLOT = {"round": 3, "node": "peer-7", "slot": 2, "prompt": "What is 2 + 2?"}


def test_seeds_match_the_test_vectors():
    """Nodes in other languages compute the same seeds; a change here breaks running swarms."""
    assert PublicCoin("my-run").seed(**SLOT) == VECTOR
    assert PublicCoin("my-run", {3: "beacon"}).seed(**SLOT) == VECTOR_WITH_BEACON
    assert PublicCoin("my-run").prompt_index(round=3, node="peer-7", slot=2, prompts=1000) == INDEX


@pytest.mark.parametrize(
    "change", [{"round": 4}, {"node": "peer-8"}, {"slot": 3}, {"prompt": "What is 2 + 3?"}]
)
def test_every_field_of_the_slot_changes_the_seed(change):
    coin = PublicCoin("my-run")
    assert coin.seed(**{**SLOT, **change}) != coin.seed(**SLOT)
    assert PublicCoin("your-run").seed(**SLOT) != coin.seed(**SLOT)
    assert PublicCoin("my-run", {3: "x"}).seed(**SLOT) != coin.seed(**SLOT)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 10**9))
def test_field_boundaries_change_the_seed(node, slot):
    coin = PublicCoin("r")
    seed = coin.seed(round=1, node=node, slot=slot, prompt="p")
    assert 0 <= seed < 2**64
    assert seed != coin.seed(round=1, node=node + "1", slot=slot, prompt="p")
    assert seed != coin.seed(round=11, node=node, slot=slot, prompt="p")


def test_prompts_are_drawn_uniformly_and_independently_of_seeds():
    coin = PublicCoin("r")
    counts = [0] * 7
    for slot in range(7000):
        counts[coin.prompt_index(round=0, node="n", slot=slot, prompts=7)] += 1
    assert all(850 < count < 1150 for count in counts)  # 5 standard deviations


def test_messages_hash_independently_of_key_order_and_unlike_text():
    one = [{"role": "user", "content": "hi"}]
    assert canonical(one) == canonical([{"content": "hi", "role": "user"}])
    assert canonical(one) != canonical(canonical(one).decode().removeprefix("messages:"))


def test_missing_fields_are_named():
    with pytest.raises(ValueError, match="run: expected a name"):
        PublicCoin("")
    with pytest.raises(KeyError):
        PublicCoin("r", {1: "a"}).seed(**SLOT)
    with pytest.raises(ValueError, match="slot: expected an integer >= 0"):
        PublicCoin("r").seed(**{**SLOT, "slot": -1})
    with pytest.raises(ValueError, match="prompts: expected an integer >= 1"):
        PublicCoin("r").prompt_index(round=0, node="n", slot=0, prompts=0)
