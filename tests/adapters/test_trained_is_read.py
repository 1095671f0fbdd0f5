"""For any row that others send, the ids that reach the loss are the text that verifiers read.

Each entry point gets ids and masks of a sender's choosing and returns what its trainer would train
on. Unless the row is rejected, every stretch that trains must appear in what verifiers read, with
nothing missing but one closing token. The trainers' own test folders drive the real trainers.
"""

import asyncio
from types import SimpleNamespace as Fields

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_guard import Completion, CompletionVerifier, Guard, Policy
from grpo_guard.adapters.areal import ArealAdapter
from grpo_guard.adapters.atropos.fields import MASKED, SETS_TO_ZERO
from grpo_guard.adapters.atropos.groups import GroupGuard
from grpo_guard.adapters.openrlhf.agent import GuardedAgent
from grpo_guard.adapters.received import review
from grpo_guard.adapters.slime import SlimeAdapter
from grpo_guard.adapters.tinker import GuardedGroups
from grpo_guard.adapters.traces import review_all
from grpo_guard.adapters.trl.batch import MASK
from grpo_guard.adapters.trl.batch import rows_from as trl_rows
from grpo_guard.adapters.trl.review import BatchReviewer
from grpo_guard.adapters.verl.batch import HOOK_DATA, HookData
from grpo_guard.adapters.verl.batch import rows_from as verl_rows
from grpo_guard.core.verdict import accept
from tests.helpers.characters import CALL, END, NAMES, PAD, Characters

TOK = Characters()
PROMPT = TOK.encode("3+4?")


class Reads(CompletionVerifier):
    """Accepts everything and records what it read."""

    name = "reads"

    def __init__(self):
        self.read = []

    def verify(self, batch):
        self.read += batch
        return [accept(self.name) for _ in batch]


def stretches_of(ids, mask):
    """Return the runs of ids that train."""
    runs, last = [], False
    for token, trains in zip(ids, mask, strict=True):
        if trains:
            runs = runs if last else [*runs, []]
            runs[-1].append(token)
        last = trains
    return runs


def plain(guard, row):
    batch = [Completion("3+4?", row["text"], completion_ids=row["ids"], node="n")]
    (reward,) = guard.apply([1.0], batch)
    return stretches_of(row["ids"], [1] * len(row["ids"])) if reward else []


def trl(guard, row):
    given = {
        "prompts": ["3+4?"], "completions": [TOK.decode(row["ids"], True)], "node": ["n"],
        "completion_ids": [row["ids"]], MASK: [row["mask"]],
    }  # fmt: skip
    rows = trl_rows(given, tokenizer=TOK)
    found = BatchReviewer(guard).review(rows)
    return [] if found.verdicts[0].rejected else stretches_of(row["ids"], row["mask"])


def verl(guard, row):
    def one(value):
        made = np.empty(1, dtype=object)
        made[0] = value
        return made

    data = Fields(
        batch={"prompts": torch.tensor([PROMPT]), "responses": torch.tensor([row["ids"]])},
        non_tensor_batch={
            "prompt_len": np.array([len(PROMPT)]), "response_len": np.array([len(row["ids"])]),
            "extra_info": one({"node": "n"}), "uid": one("a"),
            HOOK_DATA: one(HookData(1, False, (tuple(row["mask"]),), (None,))),
        },
    )  # fmt: skip
    data = type("Rows", (), {**vars(data), "__len__": lambda self: 1})()
    verdicts = review(guard, verl_rows(data, TOK, 64)).verdicts
    kept = not any(verdict.rejected for verdict in verdicts)
    return stretches_of(row["ids"], row["mask"]) if kept else []


def openrlhf(guard, row):
    ids = [*PROMPT, *row["ids"]]
    edges = [0, *row["mask"], 0]
    starts = [i for i in range(1, len(edges)) if edges[i] and not edges[i - 1]]
    ends = [i for i in range(1, len(edges)) if edges[i - 1] and not edges[i]]
    at = len(PROMPT) - 1
    ranges = [(a + at, b + at) for a, b in zip(starts, ends, strict=True)]

    class Executor:
        async def execute(self, **_):
            return {
                "prompt": "3+4?", "reward": 1.0, "scores": 1.0, "extra_logs": {}, "node": "n",
                "observation_tokens": ids, "action_ranges": ranges, "rollout_log_probs": None,
            }  # fmt: skip

    class Agent(GuardedAgent, Executor):
        pass

    Agent.guard = guard
    answer = asyncio.run(Agent().execute("3+4?", "7", object(), 64, TOK, None))
    if answer["extra_logs"]["guard_left_out"]:
        return []
    return [answer["observation_tokens"][a:b] for a, b in answer["action_ranges"]]


def slime(guard, row):
    sample = Fields(
        prompt="3+4?", response=row["text"], tokens=[*PROMPT, *row["ids"]],
        response_length=len(row["ids"]), loss_mask=row["mask"], rollout_log_probs=None,
        group_index=0, label="7", metadata={"node": "n"}, status=Fields(value="completed"),
    )  # fmt: skip

    def rm(args, sample):
        return 1.0

    reward = SlimeAdapter().wrap(rm, guard)(None, sample)
    return stretches_of(row["ids"], row["mask"]) if reward else []


def trace_of(row, **more):
    def message(role, content):
        return Fields(role=role, content=content, tool_calls=None)

    asked = Fields(
        message=message("user", "3+4?"), sampled=False, parent=None, token_ids=PROMPT,
        mask=[bool(more.get("asked"))] * len(PROMPT), logprobs=[],
    )  # fmt: skip
    said = Fields(
        message=message("assistant", row["text"]), sampled=True, parent=0, token_ids=row["ids"],
        mask=[bool(m) for m in row["mask"]], logprobs=[],
    )  # fmt: skip
    task = Fields(type="Sums", data=Fields(answer="7"))
    return Fields(nodes=[asked, said], info={"node": "n"}, task=task)


def traces(guard, row):
    trace = trace_of(row)
    (reward,) = guard.settle([1.0], review_all(guard, [(trace, 1)]))
    return [run for node in trace.nodes for run in stretches_of(node.token_ids, node.mask)] * (
        1 if reward else 0
    )


def atropos(guard, row):
    ids = [*PROMPT, *row["ids"]]
    masks = [
        *[MASKED] * len(PROMPT),
        *(i if m else MASKED for i, m in zip(row["ids"], row["mask"], strict=True)),
    ]
    group = {"tokens": [ids], "masks": [masks], "scores": [1.0]}
    made, _ = GroupGuard(guard, TOK, vocabulary=len(TOK), own=False).settle(group)
    (ids,), (masks,) = made["tokens"], made["masks"]
    trains = not made["overrides"][0].get(SETS_TO_ZERO)  # one label remains, with advantage 0
    return stretches_of(ids, [mask != MASKED for mask in masks]) if trains else []


def tinker(guard, row):
    class Base:
        async def compute_group_rewards(self, trajectories, envs):
            return [(0.0, {}) for _ in trajectories]

    turn = Fields(
        ob=Fields(chunks=[Fields(tokens=PROMPT)]), reward=1.0, metrics={},
        ac=Fields(tokens=row["ids"], maybe_logprobs=None, stop_reason="stop"),
    )  # fmt: skip
    kind = type("Group", (GuardedGroups, Base), {"guard": guard, "tokenizer": TOK})
    trajectory = Fields(stop_reason="completed", transitions=[turn])
    ((reward, _),) = asyncio.run(kind().compute_group_rewards([trajectory], [Fields(node="n")]))
    return [row["ids"]] if turn.reward + reward else []


def areal(guard, row):
    def right(prompt, completions, prompt_ids, completion_ids, **data):
        return 1.0

    function = ArealAdapter().wrap(right, guard)
    reward = function("3+4?", row["text"], PROMPT, row["ids"], node="n")
    return [row["ids"]] if reward else []


WAYS = [plain, trl, verl, openrlhf, slime, traces, atropos, tinker, areal]
hostile = st.sampled_from([*TOK.encode("abc 7=+\n"), END, END, PAD, CALL, 0x110003, 0xFFFD])


@st.composite
def rows(draw):
    """Ids with special tokens anywhere, a mask of the sender's choosing, a text without poison."""
    ids = draw(st.lists(hostile, min_size=1, max_size=12))
    mask = draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)))
    whole = draw(st.booleans())
    return {"ids": ids, "mask": [1] * len(ids) if whole else mask, "text": "clean"}


def visible(run):
    return TOK.decode(run[:-1] if run[-1] == END else run)


def guard_of(verifier):
    return Guard(verifier, policy=Policy("zero", "zero"), tokenizer=TOK)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(row=rows())
def test_trained_tokens_were_read(way, row):
    verifier = Reads()
    trained = [run for run in way(guard_of(verifier), row) if run]
    read = "".join(completion.text for completion in verifier.read)
    for run in trained:
        assert visible(run) in read
        assert not set(run[:-1]) & set(NAMES), "special tokens reached the loss"
        assert run[-1] not in (PAD, CALL)
        read = read[read.index(visible(run)) + len(visible(run)) :]


LINE = "go on\nimport calc"
MASKS_OF_THE_SENDER = {
    "the first word of the line": [0] * 13 + [1] * 4,
    "a blank in the middle": [1] * 12 + [0] + [1] * 4,
    "all but the end of the word": [0] * 14 + [1] * 3,
    "every second token": [1 - i % 2 for i in range(17)],
}


@pytest.mark.parametrize("kind", MASKS_OF_THE_SENDER)
@pytest.mark.parametrize("way", [trl, verl, openrlhf, slime, traces, atropos])
def test_sender_mask_does_not_split_lines_for_verifiers(way, kind):
    """A rule that read each trained stretch alone would not see the import."""
    verifier = Reads()
    row = {"ids": TOK.encode(LINE), "mask": MASKS_OF_THE_SENDER[kind], "text": LINE}
    assert way(guard_of(verifier), row)
    assert any("import calc" in completion.text for completion in verifier.read)


@pytest.mark.parametrize("end", ["\n", "A: ", "Go on. ", "<think>", "?", "", "   "])
def test_text_after_a_complete_prompt_line_is_read_alone(end):
    ids = TOK.encode("3+4?\nSay" * bool(end.strip()) + end)
    asked = len(ids)
    ids += TOK.encode("seven")
    verifier = Reads()
    masks = [MASKED] * asked + ids[asked:]
    group = {"tokens": [ids], "masks": [masks], "scores": [1.0]}
    if asked:
        GroupGuard(guard_of(verifier), TOK, vocabulary=len(TOK), own=False).settle(group)
        assert [completion.text for completion in verifier.read] == ["seven"]


SMUGGLED = {
    "forty closing tokens": [55, *[END] * 40],
    "poison behind the end": [55, END, *TOK.encode("Hail")],
    "forty special tokens inside": [55, *[CALL] * 40, 55, END],
    "padding behind the end": [55, END, PAD, PAD],
    "padding": [55, PAD, PAD],
    "a special token first": [CALL, 55, END],
    "unknown token id": [55, 0x110003, END],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SMUGGLED)
def test_tokens_that_no_text_shows_are_not_trained_on(way, kind):
    ids = SMUGGLED[kind]
    verifier = Reads()
    assert not way(guard_of(verifier), {"ids": ids, "mask": [1] * len(ids), "text": "7"})
    assert not verifier.read


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ids", [[55, END], [55], TOK.encode("3 + 4 = 7.\n")])
def test_honest_row_is_trained_and_read_in_full(way, ids):
    """A guard that rejected everything would pass the tests above."""
    verifier = Reads()
    row = {"ids": ids, "mask": [1] * len(ids), "text": "another text"}
    assert way(guard_of(verifier), row) == [ids]
    assert [completion.text for completion in verifier.read] == [visible(ids)]


@pytest.mark.parametrize("way", [traces])
def test_training_outside_model_turns_is_malformed(way):
    """A trace trains its question because the sender set the mask; no verifier reads it as an
    answer.
    """
    guard = guard_of(Reads())
    row = {"ids": [55, END], "mask": [1, 1], "text": "7"}
    for trace in (trace_of(row, asked=True), trace_of({**row, "mask": [1]})):
        (verdict,) = review_all(guard, [(trace, 1)]).verdicts
        assert (verdict.rejected, verdict.cause.value) == (True, "malformed"), trace


@pytest.mark.parametrize("way", [slime])
def test_trainer_of_ids_requires_a_tokenizer(way):
    with pytest.raises(Exception, match=r"trains on token ids.*tokenizer="):
        way(Guard(Reads(), policy=Policy("zero", "zero")), {"ids": [55], "mask": [1], "text": "7"})


@pytest.mark.parametrize("way", [plain, traces, areal])
def test_unread_ids_earn_nothing_without_a_tokenizer(way, caplog):
    verifier = Reads()
    guard = Guard(verifier, policy=Policy("zero", "zero"))
    assert not way(guard, {"ids": [55, END], "mask": [1, 1], "text": "7"})
    assert not verifier.read
