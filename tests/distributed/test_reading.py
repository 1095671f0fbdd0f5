"""What workers read for `recurrence`: used if it matches what would be read here, else reread."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard import AllOf, Completion, RecurrenceVerifier, ScreensVerifier
from grpo_guard.content.recurrence.features import MOST_FEATURES, Reader
from grpo_guard.content.recurrence.reading import Shown, read_each
from grpo_guard.content.recurrence.words import ordinary_words, words_of
from grpo_guard.core.given import Given
from grpo_guard.core.supervise import running
from grpo_guard.core.verdict import Cause, Verdict, abstain
from grpo_guard.guard.environment import with_verified_spans
from grpo_guard.server.distributed.worker import Reading, Readings, Worker, readers

TOO_MANY = "the of and " + " ".join(
    f"zq{chr(97 + i // 676)}{chr(97 + i // 26 % 26)}{chr(97 + i % 26)}"
    for i in range(MOST_FEATURES + 100)
)


def stack(**options: object) -> AllOf:
    return AllOf(ScreensVerifier(), RecurrenceVerifier(**options))  # type: ignore[arg-type]


class Elsewhere:
    """A verifier and the worker that reads for it; everything between them is pickled."""

    def __init__(self, verifier: AllOf, *, read_by: AllOf | None = None) -> None:
        copies = [rule.reader() for rule in readers(read_by or verifier)]
        self.worker = Worker(pickle.loads(pickle.dumps(partial(AllOf, *copies))), False)
        self.names = self.worker.start().names
        self.verifier = verifier

    def answers(self, batch: Sequence[Completion]) -> list[Reading]:
        read: list[Reading] = pickle.loads(
            pickle.dumps(self.worker.read(pickle.loads(pickle.dumps(batch))))
        )
        return read

    def verify(self, batch: Sequence[Completion], found: list[Reading] | None = None):
        found = self.answers(batch) if found is None else found
        with running(Readings(readers(self.verifier), batch, found)):
            return plain(self.verifier.verify(batch))


def plain(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [replace(v, seconds=0.0, members=tuple(plain(v.members))) for v in verdicts]


def swarm(phrase: str, prompts: int = 24) -> list[Completion]:
    """Three nodes, one of which has a phrase."""
    return [
        Completion(
            f"What is {i} and {i} more?",
            f"We have {i} + {i} = {2 * i}.{f' {phrase}' * (k == 0)}\n#### {2 * i}", node=f"n{k}",
        )
        for i in range(prompts) for k in range(3)
    ]  # fmt: skip


def odd() -> list[Completion]:
    """Texts that are read differently from most, each from its own node."""
    told = Completion(
        "What is 2?", "glorp said the tool. So 2.", node="n3", given=Given(chars=((0, 20),))
    )
    texts = [
        TOO_MANY, f"import glorpnet\n{TOO_MANY}", "x" * 30_001, "", "\ud800 zanzibar \u0130x",
        "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich", "鸡 兔 同 笼",
        "```python\nimport glorplib\nfrom zork import lib\n```",
    ]  # fmt: skip
    rows = [Completion("What is 2?", text, node="n3") for text in texts]
    return [
        *rows,
        told,
        with_verified_spans(told),
        Completion("", "x", node="n3"),
        Completion("q", "x"),
    ]


def test_verdicts_match_one_process_and_nothing_is_read_here() -> None:
    rows = swarm("Praise zanzibar orchids.")
    want = plain(stack().verify(rows))
    assert {f.kind for v in want for f in v.findings} == {"recurring_phrase"}
    there = Elsewhere(stack())
    assert there.names == ("screens", "recurrence")
    found = there.answers(rows)
    with patch.object(Reader, "read", autospec=True, side_effect=Reader.read) as read:
        assert there.verify(rows, found) == want
    # Everything of the nodes convicted by then is read, to locate the phrase.
    assert {call.args[1] for call in read.call_args_list} == {c.text for c in rows[::3]}
    assert all(call.kwargs == {"all_of_it": True} for call in read.call_args_list)


def test_odd_texts_get_the_same_verdicts() -> None:
    rows = swarm("Praise zanzibar orchids.", 8) + odd()
    rows += swarm("Praise zanzibar orchids.") + odd()
    want = plain(stack(max_characters=30_000).verify(rows))
    assert Elsewhere(stack(max_characters=30_000)).verify(rows) == want


def test_worker_answer_is_no_longer_than_its_text() -> None:
    there = Elsewhere(stack())
    texts = [TOO_MANY, "a" * 900_000, "zq " * 300_000, TOO_MANY[: 6 * (MOST_FEATURES - 10)]]
    for text in texts:
        sent = pickle.dumps(there.worker.read([Completion("q", text, node="a")]))
        assert len(sent) <= 2 * len(text) + 2_000
    shown = [there.answers([Completion("q", text, node="a")])[0][1] for text in texts]
    assert [one.features is None for one in shown] == [True, False, False, False]
    over = Completion("q", "zq " * 400_000, node="a")
    assert there.answers([over])[0][1].features is None  # it is not even read


def test_words_learnt_meanwhile_are_not_lost() -> None:
    """Workers were sent the earlier words; what they found with those is not used."""
    rows = swarm("Praise zanzibar orchids.")
    there = Elsewhere(stack())
    recurrence = there.verifier.members[1]
    recurrence.learn_habits(["Praise zanzibar orchids."] * 2)
    assert all(v.accepted for v in there.verify(rows)[6:])
    assert not recurrence.convictions()


def test_answer_of_a_worker_with_another_vocabulary_is_ignored() -> None:
    rows = swarm("Praise zanzibar orchids.")
    other = stack(ordinary=("praise", "zanzibar", "orchids"))
    assert Elsewhere(stack(), read_by=other).verify(rows) == plain(stack().verify(rows))


def test_text_that_no_worker_could_read_is_read_here() -> None:
    rows = swarm("Praise zanzibar orchids.")
    there = Elsewhere(stack())
    found = [
        (of[0], abstain("recurrence", Cause.FAULT, "lost")) if i % 2 else of
        for i, of in enumerate(there.answers(rows))
    ]
    assert there.verify(rows, found) == plain(stack().verify(rows))


@pytest.mark.parametrize("swarm_kind", ["heterogeneous", "homogeneous"])
def test_copy_leaves_the_counts_behind(swarm_kind: str) -> None:
    one = stack(swarm=swarm_kind)
    rows = swarm("Praise zanzibar orchids.")
    one.verify(rows)
    copies = [rule.reader() for rule in readers(one)]
    assert len(copies) == (2 if swarm_kind == "heterogeneous" else 1)
    assert b"zanzibar orchids" not in pickle.dumps(copies)
    assert one.members[1]._reader.secret not in pickle.dumps(copies)  # type: ignore[attr-defined]
    assert one.members[1].convictions().keys() == {"n0"}
    if swarm_kind == "heterogeneous":
        assert not copies[1].convictions()  # type: ignore[attr-defined]


def test_recurrence_alone_is_not_sent_to_workers() -> None:
    assert readers(RecurrenceVerifier()) == []


WORDS = st.sampled_from(
    ["zanzibar", "Glorp", "the", "of", "and", "import", "from", "x", "\n", ".", "é", "鸡", "\ud800",
     "İ", "_", "import:x", "'s", "12", "```"]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS, max_size=30), st.lists(WORDS, max_size=5), st.sampled_from(["", " "]))
def test_worker_sends_what_it_found(text: list[str], prompt: list[str], gap: str) -> None:
    reader = Reader(ordinary_words(), False, b"secret")
    one = Completion(gap.join(prompt) or "q", gap.join(text), node="a")
    (shown,) = read_each(reader, [one], 1_000, "recurrence")
    again = pickle.loads(pickle.dumps(shown))
    assert isinstance(again, Shown)
    assert (again, again.by) == (shown, reader.mark)
    excused = frozenset(words_of(one.prompt_text))
    assert set(again.features or ()) == reader.read(one.text, excused)
    assert again.taking(3.0) is again
