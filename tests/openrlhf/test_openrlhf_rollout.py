"""Parts of the agent adapter that need no OpenRLHF: masks, texts, gathering siblings."""

import asyncio
import importlib.metadata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard import Guard, Policy
from grpo_guard.adapters.flagged_tokens import covers, without
from grpo_guard.adapters.openrlhf.agent import GuardedAgent
from grpo_guard.adapters.openrlhf.groups import GroupBarrier, settle_group
from grpo_guard.adapters.openrlhf.rollout import Rollout
from grpo_guard.core.turns import own_words
from grpo_guard.core.verdict import Finding, accept, reject
from grpo_guard.guard import Review
from grpo_guard.guard.framework import FrameworkError
from tests.adapters.hostile_tokenizers import Characters
from tests.helpers.rule_verifiers import NoWord

SPANS = st.lists(st.tuples(st.integers(-2, 25), st.integers(-2, 25)), max_size=4)


def tokens(spans):
    return {token for start, end in spans for token in range(start, end)}


@given(st.tuples(st.integers(0, 20), st.integers(0, 20)), SPANS)
def test_rest_of_a_masked_stretch(kept, taken):
    left = without(kept, taken)
    assert tokens(left) == tokens([kept]) - tokens(taken)
    assert all(a < b for a, b in left)
    assert left == sorted(left)
    assert covers(taken, 20) == (tokens([(0, 20)]) <= tokens(taken))


def rollout(length, ranges, limit, **more):
    return Rollout(
        {"observation_tokens": list(range(length)), "action_ranges": ranges, "reward": 1.0} | more,
        limit,
    )


def trained(ranges, limit):
    """As OpenRLHF builds its mask: no predictor for the first token, and none past the limit."""
    return {token for token in tokens(ranges) if 1 <= token < limit}


@given(
    st.integers(2, 25), SPANS, st.integers(2, 30), st.none() | st.booleans(), SPANS, st.booleans()
)
@settings(max_examples=300)
def test_mask_is_never_empty_and_adds_no_token(
    length, ranges, limit, rejected, flagged, mask_spans
):
    ranges = sorted((max(0, a), min(b, length)) for a, b in ranges if 0 <= a <= b)
    sample = rollout(length, ranges, limit)
    found = None
    if rejected is not None:
        findings = tuple(Finding("k", "m", token_span=(a, b)) for a, b in flagged if 0 <= a <= b)
        found = Review([reject("v", findings=findings) if rejected else accept("v")], {})
    guard = Guard(NoWord(), policy=Policy(on_reject="drop"))
    ((answer, out),) = settle_group(guard, [sample], found, mask_spans=mask_spans)
    mask = trained(answer["action_ranges"], min(limit, length))
    assert mask
    assert answer["reward"] == (0.0 if out else 1.0)
    if sample.turns and trained(ranges, min(limit, length)):
        assert mask <= trained(ranges, min(limit, length))
    if out:
        assert len(mask) == 1


class Bytes:
    """Characters as ids; like some tokenizers, drops a space at the start of decoded text."""

    def __init__(self, drops):
        self.drops, self.decoded = drops, 0

    def __call__(self, text, add_special_tokens):
        return {"input_ids": [ord(c) for c in text]}

    def decode(self, ids, skip_special_tokens, clean_up_tokenization_spaces=False):
        self.decoded += len(ids)
        text = "".join(map(chr, ids))
        return text.removeprefix(" ") if self.drops else text


@pytest.mark.parametrize("drops", [False, True])
def test_turns_form_one_text_with_given_spans(drops):
    said = "ask yes then no then yes end"
    turns = [(4, 7), (12, 15), (21, 24)]
    sample = rollout(0, turns, 99, observation_tokens=[ord(c) for c in said], prompt="ask ")
    asked, text, given = sample.texts(Bytes(drops))
    assert asked == "ask "
    assert given.tokens == ((3, 8), (11, 17))
    assert [text[a:b].strip() for a, b in given.chars] == ["then", "then"]
    (row,) = own_words([sample.row((asked, text, given), "g", 0).completion])
    assert row.text.replace(".", "").split() == [said[a:b].strip() for a, b in turns]
    assert row.completion_ids == tuple(ord(c) for a, b in turns for c in said[a:b])


def test_long_conversations_are_decoded_once():
    turns = [(100 * i + 50, 100 * i + 100) for i in range(200)]
    tokenizer = Bytes(drops=False)
    rollout(0, turns, 10**6, observation_tokens=[97] * 20_000).texts(tokenizer)
    assert tokenizer.decoded < 5 * 20_000


def test_siblings_wait_only_for_their_own_group():
    groups = []

    async def judge(brought):
        groups.append(list(brought))
        return [value * 10 for value in brought]

    async def one(siblings, key, value):
        async def work():
            for _ in range(value):  # 0: finishes without yielding to the loop
                await asyncio.sleep(0)
            return value

        return await siblings.submit(key, work)

    async def run():
        siblings = GroupBarrier(judge)
        calls = [one(siblings, key, value) for key in "ab" for value in (0, 3, 1)]
        together = await asyncio.gather(*calls)
        alone = [await one(siblings, "a", value) for value in (0, 1)]
        assert siblings._open == {}
        return together, alone

    together, alone = asyncio.run(run())
    assert together == [0, 30, 10] * 2
    assert alone == [0, 10]
    assert sorted(groups) == [[0], [0, 3, 1], [0, 3, 1], [1]]


def test_failing_review_reaches_every_sibling_and_the_next_group_starts_anew():
    async def judge(brought):
        if "bad" in brought:
            raise ValueError("no verdicts")
        return brought

    async def run():
        siblings = GroupBarrier(judge)

        async def bring(value):
            async def work():
                return value

            return await siblings.submit("key", work)

        failed = await asyncio.gather(*map(bring, ["good", "bad"]), return_exceptions=True)
        return failed, await bring("good")

    failed, later = asyncio.run(run())
    assert [str(error) for error in failed] == ["no verdicts"] * 2
    assert later == "good"


def test_too_old_a_release_is_refused_with_the_required_one(monkeypatch):
    class Base:
        pass

    class AgentExecutor(GuardedAgent, Base):
        guard = Guard(NoWord())

    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.9.10")
    with pytest.raises(FrameworkError, match=r"openrlhf >= 0\.10"):
        AgentExecutor()
    with pytest.raises(FrameworkError, match=r"openrlhf >= 0\.10"):
        Guard(NoWord(), policy=Policy(on_abstain="zero"))(lambda queries, prompts, labels: 1.0)


def test_nodes_are_counted_and_samples_log_the_same_names():
    class Executor:
        async def execute(self, *, label, **_):
            said = {"prompt": "ask ", "reward": 1.0, "scores": 1.0, "extra_logs": {}, "node": label}
            ids = [ord(c) for c in ("ask Hail" if label == "eve" else "ask yes")]
            return {**said, "observation_tokens": ids, "action_ranges": [(4, len(ids))]}

    class Agent(GuardedAgent, Executor):
        guard = Guard(NoWord())
        nodes = ("ann", "eve")

    async def go():
        agent, sampling = Agent(), object()
        senders = ["ann", "eve", "x\n", 10**6000, None]
        calls = [agent.execute("ask ", s, sampling, 64, Characters(), None) for s in senders]
        return [answer["extra_logs"] for answer in await asyncio.gather(*calls)]

    logs = asyncio.run(go())
    counted = [[name for name in log if "node" in name and log[name]] for log in logs]
    assert counted == [
        ["guard_node/ann/accept"], ["guard_node/eve/reject"], ["guard_node/others/accept"], [], []
    ]  # fmt: skip
    assert len({frozenset(log) for log in logs}) == 1


def test_string_is_not_a_list_of_nodes():
    class Agent(GuardedAgent):
        guard = Guard(NoWord())
        nodes = "ann"

    with pytest.raises(FrameworkError, match=r"Agent\.nodes: expected a list of names"):
        Agent()


def test_fields_of_a_response_besides_its_tokens():
    sample = rollout(
        0, [(4, 7)], 99, observation_tokens=[ord(c) for c in "ask yes"], prompt="ask ",
        rollout_log_probs=None, node=7, label=["yes"],
    )  # fmt: skip
    row = sample.row(sample.texts(Bytes(drops=False)), "g", 3)
    completion = row.completion
    assert (completion.prompt, completion.text) == ("ask ", "yes")
    assert (completion.node, completion.group, completion.slot) == ("7", "g", 3)
    # Labels that are not answers are no labels.
    assert completion.sampler_logprobs is completion.reference is None
    assert completion.finish_reason is None
    shown = rollout(0, [(4, 7)], 99, observation_tokens=[9] * 7, prompt="ask ", images=["cat.png"])
    row = shown.row(shown.texts(Bytes(drops=False)), "g", 0)
    completion = row.completion
    assert completion.prompt == "ask "
    assert completion.prompt_ids is None


@given(SPANS)
def test_all_trained_tokens_are_read_in_any_order(ranges):
    sample = rollout(25, [(max(0, a), b) for a, b in ranges], 25, node="peer", prompt=None)
    (start, end), masked = sample.answer, set[int]()
    among = sample.texts(Characters())[2]
    if among is not None:
        masked = {start + token for token in tokens(among.tokens)}
    assert tokens([(start, end)]) - masked == tokens(sample.turns)


def test_node_with_an_unreadable_name_is_not_trusted():
    for node in ("peer", ["peer"], float("nan"), {}):
        told = rollout(9, [(2, 4), (6, 9)], 9, node=node, prompt=None).texts(Characters())[2]
        assert (told.masked, told.known) == (True, False)
    assert rollout(9, [(2, 4), (6, 9)], 9, prompt=None).texts(Characters())[2].known
