"""Slot ownership: every way for a node to choose among honest samples is refused."""

import threading
import time

import pytest

from grpo_guard import Completion
from grpo_guard.core.verdict import Cause
from grpo_guard.logprob.encode import EncodeError
from grpo_guard.logprob.replay.slots import EmptySlot, Place, SlotBook

PROMPTS = ["What is 2 + 2?", [{"role": "user", "content": "What is 3 + 3?"}]]
LONE = "\ud800"


def completion(prompt=PROMPTS[0], **changes):
    return Completion(prompt, "4", **{"node": "a", "round": 3, "slot": 0, **changes})


def book(slots=2, *, round=3, prompts=PROMPTS, **options):
    """Slots of two nodes, in a round that has begun."""
    own = SlotBook(slots, **{"nodes": ["a", "b"], **options})
    if round is not None:
        own.begin_round(round, prompts if own.per_prompt else None)
    return own


def refusal(own, sent):
    with pytest.raises(EncodeError) as caught:
        own.place(sent)
    return caught.value.cause, caught.value.kind


def fill(own, **changes):
    return own.fill(own.place(completion(**changes)))


# What is refused.


def test_own_slot_in_the_current_round_is_accepted():
    place = book().place(completion(slot=1))
    assert (place.round, place.node, place.slot) == (3, "a", 1)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"slot": None}, "slot_missing"),
        ({"round": None}, "slot_missing"),
        ({"node": None}, "slot_missing"),
        ({"node": "c"}, "unknown_node"),
        ({"node": LONE}, "unknown_node"),
        ({"slot": 2}, "unknown_slot"),
        ({"slot": -1}, "unknown_slot"),
        ({"slot": 10**6}, "unknown_slot"),
        ({"round": 4}, "wrong_round"),
        ({"round": -3}, "wrong_round"),
        ({"prompt": "What is 5 + 5?"}, "wrong_prompt"),
        ({"prompt": "What is 2 + 2? "}, "wrong_prompt"),
        ({"prompt": [{"role": "user", "content": PROMPTS[0]}]}, "wrong_prompt"),
        ({"prompt": [{"role": "system", "content": "What is 3 + 3?"}]}, "wrong_prompt"),
    ],
    ids=str,
)
def test_wrong_or_missing_slot_is_malformed(changes, kind):
    assert refusal(book(), completion(**changes)) == (Cause.MALFORMED, kind)


def test_refusal_names_everything_that_is_missing():
    with pytest.raises(EncodeError, match="needs round and slot"):
        book().place(completion(round=None, slot=None))


def test_every_round_is_accepted_with_a_warning_before_the_first(caplog):
    own = book(round=None)
    assert own.place(completion()).slot == 0
    own.place(completion())
    assert caplog.text.count("begin_round") == 1
    assert refusal(own, completion(round=None))[0] is Cause.MALFORMED


def test_without_a_share_any_nonnegative_slot_is_accepted():
    own = SlotBook()
    assert own.place(completion(slot=10**6)).slot == 10**6
    assert refusal(own, completion(slot=-1)) == (Cause.MALFORMED, "unknown_slot")


def test_order_of_message_keys_does_not_matter():
    same = [{"content": "What is 3 + 3?", "role": "user"}]
    assert book().place(completion(same)) == book().place(completion(PROMPTS[1]))


def test_nodes_and_prompts_are_optional():
    own = book(nodes=None, prompts=None)
    assert own.place(completion("anything", node="c")).node == "c"


def test_finished_rounds_may_have_any_nonnegative_number():
    own = book(round=None)
    assert own.place(completion(round=17)).round == 17
    assert refusal(own, completion(round=-1)) == (Cause.MALFORMED, "wrong_round")


@pytest.mark.parametrize("prompts", [PROMPTS, None], ids=["announced", "vouched for"])
def test_prompt_that_is_not_unicode_rejects(prompts):
    """Lone surrogates pass json.loads and crash on encoding."""
    own = book(prompts=prompts)
    assert refusal(own, completion(f"hi {LONE}")) == (Cause.MALFORMED, "wrong_prompt")


def test_messages_that_are_not_unicode_match_no_prompt():
    sent = completion([{"role": "user", "content": LONE}])
    assert refusal(book(), sent) == (Cause.MALFORMED, "wrong_prompt")


@pytest.mark.parametrize("prompts", [PROMPTS, None], ids=["announced", "vouched for"])
def test_messages_that_are_not_json_reject(prompts):
    """One of them must not stop the check of the others' completions."""
    for content in (object(), {1: 2, "1": 2}):
        sent = completion([{"role": "user", "content": content}])
        assert refusal(book(prompts=prompts), sent) == (Cause.MALFORMED, "wrong_prompt")


# Who may fill what, and how often.


def test_a_slot_is_filled_once():
    own = book()
    assert fill(own)
    assert not fill(own)


def test_each_node_slot_and_prompt_is_filled_separately():
    own = book()
    for node in ("a", "b"):
        for slot in (0, 1):
            for prompt in PROMPTS:
                assert fill(own, node=node, slot=slot, prompt=prompt)
    assert own.missing() == []


def test_slot_with_a_drawn_prompt_is_filled_once_for_any_prompt():
    own = book(per_prompt=False)
    assert fill(own, prompt="one")
    assert not fill(own, prompt="another")
    assert own.missing() == [EmptySlot("a", 1), EmptySlot("b", 0), EmptySlot("b", 1)]


def test_slots_of_finished_rounds_are_filled_once_too():
    """A completion that counts twice is a choice too."""
    own = book(round=None)
    assert fill(own, round=5)
    assert not fill(own, round=5)
    assert fill(own, round=6)


class SlowPlace(Place):
    """Lets other threads run at every look-up."""

    def __hash__(self):
        time.sleep(1e-4)
        return super().__hash__()


def test_exactly_one_thread_fills_a_slot():
    own = SlotBook(10)
    own.begin_round(0)
    together = threading.Barrier(8)
    won = [[] for _ in range(8)]

    def race(i):
        for slot in range(10):
            together.wait()
            won[i].append(own.fill(SlowPlace(0, "a", slot, b"")))

    threads = [threading.Thread(target=race, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sum(winners) for winners in zip(*won, strict=True)] == [1] * 10


# Rounds.


def test_new_round_clears_the_slots_and_ends_the_old_one():
    own = book()
    fill(own)
    own.begin_round(4, PROMPTS)
    assert len(own.missing()) == 8
    assert refusal(own, completion(round=3)) == (Cause.LATE, "wrong_round")
    assert fill(own, round=4)
    own.begin_round(3, PROMPTS)
    assert len(own.missing()) == 8


def test_beginning_the_same_round_again_changes_nothing():
    """A trainer that calls it at every step must reopen neither filled slots nor prompts."""
    own = book()
    fill(own)
    for prompts in (PROMPTS, None):
        own.begin_round(3, prompts)
        assert not fill(own)
        assert refusal(own, completion("What is 5 + 5?"))[1] == "wrong_prompt"
        assert len(own.missing()) == 7


def test_prompts_of_a_round_may_be_set_later():
    own = book(prompts=None)
    fill(own)
    own.begin_round(3, PROMPTS)
    assert len(own.missing()) == 7


def test_the_next_round_does_not_inherit_prompts():
    own = book()
    own.begin_round(4)
    assert own.place(completion("What is 5 + 5?", round=4)).round == 4


def test_completion_of_a_round_that_ended_meanwhile_fills_no_slot():
    own = book()
    late = own.place(completion())
    own.begin_round(4, PROMPTS)
    with pytest.raises(EncodeError, match="has ended"):
        own.fill(late)
    own.begin_round(3, PROMPTS)
    assert len(own.missing()) == 8


@pytest.mark.parametrize("round", [-1, True, 1.0, "3", None])
def test_invalid_round_is_refused_and_changes_nothing(round):
    own = book()
    fill(own)
    with pytest.raises(ValueError, match="round: expected an integer >= 0"):
        own.begin_round(round, PROMPTS)
    assert len(own.missing()) == 7


def test_prompts_are_refused_if_slots_draw_their_own():
    with pytest.raises(ValueError, match="every slot draws its own prompt"):
        book(per_prompt=False).begin_round(4, PROMPTS)


# What is missing.


def test_empty_slots_are_listed_by_node_prompt_and_slot():
    own = book()
    for slot, prompt in ((0, PROMPTS[0]), (1, PROMPTS[1])):
        fill(own, node="b", slot=slot, prompt=prompt)
    a = [EmptySlot("a", slot, prompt) for prompt in (0, 1) for slot in (0, 1)]
    assert own.missing() == [*a, EmptySlot("b", 1, 0), EmptySlot("b", 0, 1)]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"round": None}, "a round that has begun"),
        ({"nodes": None}, "the nodes' names"),
        ({"prompts": None}, "begin_round with the round's prompts"),
    ],
)
def test_uncountable_slots_are_reported(options, match):
    with pytest.raises(ValueError, match=f"missing: expected .*{match}"):
        book(**options).missing()


@pytest.mark.parametrize("slots", [0, -1, True, 2.0, "2"])
def test_share_must_be_a_positive_integer(slots):
    with pytest.raises(ValueError, match="slots: expected an integer >= 1"):
        SlotBook(slots)


def test_single_name_instead_of_a_list_is_refused():
    """Its letters would count as the nodes."""
    with pytest.raises(ValueError, match="nodes: expected a list of names, got 'peer'"):
        SlotBook(1, nodes="peer")
