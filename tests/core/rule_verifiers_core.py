"""Small verifiers with a fixed rule, for the tests of the core."""

from grpo_guard import Cause, Completion, CompletionVerifier
from grpo_guard.core.verdict import abstain, accept, reject


def completions(*texts):
    return [Completion("p", text) for text in texts]


class Says(CompletionVerifier):
    """Reads its verdict from the text: a, r, ? (abstains), m (malformed); anything else accepts.

    With ``at=i`` it reads character i, so that several members can disagree on one completion.
    """

    def __init__(self, name="says", at=0, p_value=None):
        self.name, self.at, self.p_value = name, at, p_value
        self.batches = []

    def verify(self, batch):
        self.batches.append([c.text for c in batch])
        return [self._verdict(c.text[self.at]) for c in batch]

    def _verdict(self, letter):
        if letter == "r":
            return reject(self.name, message=f"{self.name} rejects", p_value=self.p_value)
        if letter == "m":
            return reject(self.name, Cause.MALFORMED, "garbage")
        if letter == "?":
            return abstain(self.name, Cause.PROVIDER, "no answer")
        if letter == "n":
            return abstain(self.name, Cause.NOT_APPLICABLE)
        return accept(self.name, p_value=self.p_value)
