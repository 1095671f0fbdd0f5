"""Verifiers and rewards that the agent files of the tests import."""

from grpo_guard import CompletionVerifier
from grpo_guard.core.given import Given, stretches
from grpo_guard.core.turns import own_text
from grpo_guard.core.verdict import Cause, Finding, abstain, accept, reject

WORD = "Hail"


class Words(CompletionVerifier):
    """Rejects "Hail" and reports its tokens (one per character here); abstains on "unseen"."""

    name = "words"
    timeout = None

    def __init__(self):
        self.batches = []

    def verify(self, batch):
        self.batches.append(list(batch))
        return [self._verdict(completion) for completion in batch]

    def _verdict(self, completion):
        own = own_text(completion)
        text = own.completion.text if own else completion.text
        if "break" in text:
            raise RuntimeError("no model loaded")
        if WORD in text or not text:
            at = text.find(WORD)
            at = own.place((at, at + 1))[0] if own else at
            given = completion.verified_spans or Given()
            ids, chars = (
                stretches(spans, len(of))
                for spans, of in (
                    (given.tokens, completion.completion_ids or ()),
                    (given.chars, completion.text),
                )
            )
            at += next((a - b for (a, _), (b, end) in zip(ids, chars, strict=False) if at < end), 0)
            span = (at, at + len(WORD)) if text else None
            return reject(self.name, findings=(Finding("word", "says Hail", token_span=span),))
        return abstain(self.name, Cause.UNSUPPORTED) if "unseen" in text else accept(self.name)


class FullDisk:
    def record(self, batch, verdicts):
        raise OSError("disk full")


def graded(queries, prompts, labels):
    """1 for the right answer, 0 for a wrong one; raises on "crash", NaN on "nan"."""
    query = queries[0].removeprefix(prompts[0])
    if "crash" in query:
        raise ZeroDivisionError("grader failed")
    right = float("nan") if "nan" in query else float(labels[0] in query)
    return {"rewards": right, "scores": right, "extra_logs": {"length": float(len(query))}}
