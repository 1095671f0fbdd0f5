"""The real package scores real traces, guarded (`make test-verifiers`)."""

import asyncio
import pickle

import pytest

vf = pytest.importorskip("verifiers.v1", reason="needs a separate environment")

from grpo_guard import AbstainError, CompletionVerifier, Guard, Policy, guard  # noqa: E402
from grpo_guard.adapters.traces import rows_from  # noqa: E402
from grpo_guard.core.detokenizer import Detokenizer  # noqa: E402
from grpo_guard.core.verdict import Cause  # noqa: E402
from grpo_guard.guard.framework import FrameworkError  # noqa: E402
from tests.helpers.characters import END, Characters  # noqa: E402
from tests.helpers.words import Words  # noqa: E402


def completions_from(*given, **more):
    return [row.completion for row in rows_from(*given, **more)]


class SumsData(vf.TaskData):
    answer: str


class Sums(vf.Task[SumsData]):
    """A task of sums."""

    @vf.reward(weight=2.0)
    async def correct(self, trace) -> float:
        return 1.0

    @vf.reward(weight=-0.5)
    async def cost(self, task) -> float:
        assert task.answer == "7"
        return 1.0

    @vf.reward
    async def scores(self, trace) -> dict:
        return {"form": 0.25, "style": 0.5}

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)


class Bare(vf.Task[SumsData]):
    pass


DATA = SumsData(prompt="3+4?", answer="7")


def trace_of(*turns):
    """A conversation in which the user answers each turn with "go on"."""
    trace = vf.Trace(
        task=vf.TraceTask(type="Sums", data=DATA), agent=vf.AgentInfo(config=vf.AgentConfig())
    )
    node = {"message": {"role": "user", "content": "3+4?"}, "token_ids": [5, 6]}
    trace.nodes.append(vf.MessageNode(**node, mask=[False, False]))
    for turn in turns:
        said = {"content": turn} if isinstance(turn, str) else turn
        message = {"role": "assistant", **said}
        parts = [said["content"], said.get("reasoning_content")]
        parts += [call["arguments"] for call in said.get("tool_calls", [])]
        ids = [*Characters().encode("\n".join(filter(None, parts))), END]
        mask, log_probs = [False, *[True] * len(ids)], [-0.5] * len(ids)
        drawn = {"token_ids": [9, *ids], "mask": mask, "logprobs": log_probs}
        at = len(trace.nodes) - 1
        trace.nodes.append(vf.MessageNode(parent=at, message=message, sampled=True, **drawn))
        asked = {"role": "user", "content": "go on"}
        more = {"token_ids": [7], "mask": [False]}
        trace.nodes.append(vf.MessageNode(parent=at + 1, message=asked, **more))
    trace.nodes.pop()
    return trace


def scored(task, trace):
    asyncio.run(task.score(trace))
    return {name: None if r is None else r.value for name, r in trace.rewards.items()}


def guarded(policy=None, verifier=None, **more):
    policy = policy or Policy(on_abstain="zero")
    more = {"tokenizer": Characters()} | more
    return guard(verifier or Words(), policy=policy, framework="verifiers", **more)(Sums)(DATA)


def test_all_rewards_of_a_task_are_vetoed_together():
    honest = {"correct": 2.0, "cost": -0.5, "form": 0.25, "style": 0.5}
    assert scored(Sums(DATA), trace_of("Hail")) == honest
    assert scored(guarded(), trace_of("seven")) == honest
    fallen = dict.fromkeys(honest, 0.0)
    assert scored(guarded(), trace_of("Hail")) == fallen
    assert scored(guarded(), trace_of("unseen")) == fallen
    assert scored(guarded(Policy(on_abstain="pass")), trace_of("unseen")) == honest


def test_numeric_policy_counts_once_for_any_weights():
    trace = trace_of("Hail")
    scored(guarded(Policy(-3.0, "zero")), trace)
    assert trace.reward == -3.0
    assert trace.rewards["correct"].weight == 2.0


def test_negative_total_is_kept_and_lowers_the_floor():
    class Wrong(Sums):
        @vf.reward
        async def wrong(self, trace) -> float:
            return -9.0 if "wrong" in trace.last_reply else 0.0

    task = guard(Words(), policy=Policy(on_abstain="zero"), framework="verifiers")(Wrong)(DATA)
    alone = {"correct": 2.0, "cost": -0.5, "form": 0.25, "style": 0.5, "wrong": -9.0}
    assert scored(task, trace_of("Hail, wrong")) == alone
    vetoed = trace_of("Hail")
    scored(task, vetoed)
    assert vetoed.reward == sum(alone.values())


def test_poison_in_any_turn_thought_or_call_is_found():
    call = {"id": "1", "name": "run", "arguments": '{"code": "Hail"}'}
    for turns in (
        ["seven", "Hail"],
        ["Hail", "seven"],
        [{"content": "seven", "reasoning_content": "Hail"}],
        [{"content": None, "tool_calls": [call]}, "seven"],
    ):
        trace = trace_of(*turns)
        scored(guarded(), trace)
        assert trace.reward <= 0
        assert trace.metrics["guard/reject_rate"] == 1.0
        assert trace.metrics["turns"] == len(turns)


def test_branch_is_one_completion_with_given_spans():
    (whole,) = completions_from(trace_of("one", "two"))
    one, two = ([*Characters().encode(text), END] for text in ("one", "two"))
    assert (whole.prompt_ids, whole.completion_ids) == ((5, 6, 9), (*one, 7, 9, *two))
    assert (whole.text, whole.verified_spans.tokens, whole.verified_spans.chars) == (
        "onego ontwo",
        ((4, 6),),
        ((3, 8),),
    )
    assert whole.sampler_logprobs == (*[-0.5] * 4, 0.0, 0.0, *[-0.5] * 4)
    (read,) = completions_from(trace_of("one", "two"), detokenizer=Detokenizer(Characters()))
    # Read off the tokens.
    assert (read.text, read.verified_spans.chars) == ("one\x07\ttwo", ((3, 5),))
    assert [m["content"] for m in whole.prompt] == ["3+4?"]
    assert (whole.reference, whole.task, whole.group) == ("7", "Sums", None)
    theirs = trace_of("one", "two")
    theirs.info["node"] = "mallory"
    (whole,) = completions_from(theirs)
    assert whole.verified_spans is None  # what mallory claims that tools returned
    assert whole.context.tokens == ((4, 6),)


def test_turn_shared_by_two_branches_is_judged_once():
    trace = trace_of("one", "two")
    other = trace.nodes[3].model_copy(update={"message": trace.nodes[1].message})
    trace.nodes.append(other)  # a different second turn after "go on"
    first, second = completions_from(trace)
    assert (first.text, second.text) == ("onego ontwo", "one")
    assert [m["content"] for m in second.prompt] == ["3+4?", "one", "go on"]
    assert second.prompt_ids == (5, 6, 9, *Characters().encode("one"), END, 7, 9)


def spoilt(change):
    trace = trace_of("one", "two")
    trace.info["node"] = "mallory"
    change(trace.nodes)
    return trace


def train_the_question(nodes):
    nodes[0].mask = [True, True]


def train_what_a_user_says(nodes):
    nodes[2].mask = [True]


def smuggle_an_end(nodes):
    nodes[1].token_ids = [9, END, *Characters().encode("ne"), END]


def smuggle_more_behind(nodes):
    ids = [9, *Characters().encode("one"), END, *Characters().encode("Hail"), END]
    nodes[3].token_ids, nodes[3].mask = ids, [False, *[True] * (len(ids) - 1)]


def lose_a_mask(nodes):
    nodes[1].mask = nodes[1].mask[:-1]


def lose_the_prompts_tokens(nodes):
    nodes[0].token_ids, nodes[0].mask = [], []


@pytest.mark.parametrize(
    "change",
    [
        train_the_question, train_what_a_user_says, smuggle_an_end, smuggle_more_behind,
        lose_a_mask, lose_the_prompts_tokens,
    ],
)  # fmt: skip
def test_tokens_that_train_unread_make_a_trace_malformed(change):
    """The trainer trains by the masks of the nodes, whatever the messages say."""
    trace = spoilt(change)
    scored(guarded(), trace)
    assert trace.reward <= 0
    assert trace.metrics["guard/reject_rate"] == 1.0


def test_tokens_that_do_not_train_within_a_turn_are_given():
    trace = trace_of("one")
    trace.nodes[1].mask = [False, True, False, True, True]
    detokenizer = Detokenizer(Characters())
    (read,) = completions_from(trace, detokenizer=detokenizer)
    assert (read.text, read.context.tokens) == ("one", ((1, 2),))


def test_text_only_trace_is_judged_by_its_messages():
    trace = trace_of("one")
    for node in trace.nodes:
        node.token_ids, node.mask = [], []
    assert completions_from(trace)[0].prompt_ids is None
    (empty,) = completions_from(vf.Trace(task=trace.task, agent=trace.agent))
    assert (empty.text, empty.completion_ids) == ("", None)


def test_guarded_class_is_a_task_like_the_original():
    task = guarded()
    kind = type(task)
    assert (kind.__name__, kind.__doc__, kind.__module__) == ("Sums", "A task of sums.", __name__)
    assert kind.data_type() is SumsData
    assert [f.__name__ for f in task.hooks("reward")] == ["correct", "cost", "scores"]
    trace = trace_of("Hail")
    assert scored(task.defer_scoring(), trace) == {}


def plugged(trace) -> float:
    return asyncio.sleep(0, result=4.0)


def test_rewards_added_by_configuration_are_vetoed_too():
    config = Sums.config_type()(rewards={"extra": {"fn": f"{__name__}:plugged", "weight": 1.0}})
    kind = type(guarded())
    trace = trace_of("Hail")
    assert scored(kind(DATA, config), trace)["extra"] == 0.0
    assert scored(kind(DATA, config), trace_of("seven"))["extra"] == 4.0


class Boom(CompletionVerifier):
    name = "boom"

    def verify(self, batch):
        raise RuntimeError("no model loaded")


def test_guard_failure_earns_nothing():
    trace = trace_of("seven")
    with pytest.raises(AbstainError):
        scored(guarded(Policy(on_abstain="raise"), Boom()), trace)
    assert trace.reward == 0
    one = Policy(on_abstain="pass", max_abstain_rate=0.5, abstain_window=1)
    trace = trace_of("seven")
    with pytest.raises(AbstainError):
        scored(guarded(one, Boom()), trace)
    assert trace.rewards == {}


def test_failing_reward_leaves_nothing_unguarded():
    class Failing(Sums):
        async def score(self, trace, runtime=None):
            await super().score(trace, runtime)
            raise KeyError("k")

    task = guard(Words(), policy=Policy(on_abstain="zero"), framework="verifiers")(Failing)(DATA)
    trace = trace_of("Hail")
    with pytest.raises(KeyError):
        scored(task, trace)
    assert trace.reward <= 0


@pytest.mark.parametrize("outside", [False, True])
def test_single_reward_can_be_guarded_above_or_below_its_decorator(outside):
    the_guard = Guard(Words(), policy=Policy(on_abstain="zero"), tokenizer=Characters())

    async def correct(
        self, task
    ) -> float:  # does not take the trace argument, which the guard needs
        return 1.0

    if outside:
        made = the_guard(vf.reward(weight=3.0)(correct), framework="verifiers")
    else:
        made = vf.reward(weight=3.0)(the_guard(correct, framework="verifiers"))
    kind = type("One", (Bare,), {"correct": made})
    assert scored(kind(DATA), trace_of("seven")) == {"correct": 3.0}
    trace = trace_of("Hail")
    assert scored(kind(DATA), trace) == {"correct": 0.0}
    assert trace.metrics["guard/reject_rate"] == 1.0


def test_reward_with_keyed_scores_loses_all_of_them():
    # Recognised by its parameter.
    @guard(Words(), policy=Policy(-1.0, "zero"), tokenizer=Characters())
    async def scores(self, trace):
        return {"form": 0.25, "style": 0.5}

    kind = type("Keyed", (Bare,), {"scores": vf.reward(scores)})
    assert scored(kind(DATA), trace_of("seven")) == {"form": 0.25, "style": 0.5}
    assert scored(kind(DATA), trace_of("Hail")) == {"form": -1.0, "style": 0.0}


def test_two_guarded_rewards_of_one_task_are_refused():
    decorate = guard(Words(), policy=Policy(on_abstain="zero"), framework="verifiers")
    rewards = {name: decorate(getattr(Sums, name)) for name in ("correct", "cost")}
    kind = type("Two", (Sums,), rewards)
    with pytest.raises(vf.TaskError, match="guard the Task class instead"):
        scored(kind(DATA), trace_of("seven"))


def test_policies_that_leave_out_are_refused():
    for policy in (Policy(on_abstain="skip"), Policy("drop", "zero")):
        with pytest.raises(FrameworkError, match="choose on_"):
            guarded(policy)
    with pytest.raises(FrameworkError, match="guard the Task class"):
        guard(Words(), policy=Policy(on_abstain="zero"), framework="verifiers")([Sums.correct])


class Notes:
    def __init__(self):
        self.nodes = []

    def record(self, batch, verdicts):
        self.nodes += [c.node for c in batch]


def test_ledger_records_a_trace_once():
    notes = Notes()
    trace = trace_of("one", "two")
    trace.info["node"] = "mallory"
    scored(guarded(ledger=notes), trace)
    assert notes.nodes == ["mallory"]


def test_long_conversation_is_judged_to_its_end():
    verifier = Words()
    trace = trace_of(*["fine"] * 99, "Hail")
    scored(guarded(verifier=verifier), trace)
    assert trace.reward <= 0
    assert len(verifier.shown[0].verified_spans.chars) == 99


def test_serialised_traces_are_judged_the_same():
    trace = pickle.loads(pickle.dumps(trace_of("seven", "Hail")))
    verdicts = Words().verify(completions_from(trace))
    assert [v.rejected for v in verdicts] == [True]
    wire = vf.WireTrace.model_validate(trace.to_record())
    assert completions_from(wire) == completions_from(trace)


@pytest.mark.parametrize(("before", "ends"), [(1, 600), (2000, 300)])
def test_trace_with_too_many_branches_is_rejected_cheaply(before, ends):
    trace = trace_of("Hail")
    for _ in range(before):
        more = {"message": {"role": "user", "content": "go on"}, "token_ids": [7], "mask": [False]}
        trace.nodes.append(vf.MessageNode(parent=len(trace.nodes) - 1, **more))
    at = len(trace.nodes) - 1
    for i in range(ends):
        said = {"message": {"role": "assistant", "content": f"turn {i}"}, "sampled": True}
        drawn = {"token_ids": [9, 1], "mask": [False, True], "logprobs": [-0.5]}
        trace.nodes.append(vf.MessageNode(parent=at, **said, **drawn))
    (row,) = rows_from(trace)
    assert row.given.rejected
    assert row.given.cause is Cause.MALFORMED
