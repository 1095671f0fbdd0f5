"""A backend that builds the lists vLLM would return, from given logits."""

import numpy as np


def log_softmax(logits):
    z = np.asarray(logits, dtype=np.float64)
    return z - np.logaddexp.reduce(z, axis=-1, keepdims=True)


def positions_of(logits, targets, length):
    """List as vLLM does: ranks are ordinals; an unlisted actual token's rank counts those >= it."""
    lists = []
    for row, token in zip(log_softmax(logits), targets, strict=True):
        best = np.argsort(-row, kind="stable")[:length]
        position = {int(token): (float(row[token]), int((row >= row[token]).sum()))}
        position |= {int(i): (float(row[i]), n) for n, i in enumerate(best, start=1)}
        lists.append(position)
    return lists


class FakeBackend:
    """Answers from logits [n, V], one array per sequence's completion, in turn."""

    def __init__(self, n_logprobs, *logits):
        self.n_logprobs = n_logprobs
        self.logits = logits
        self.asked = []

    def lists(self, sequences, starts):
        self.asked.append((sequences, starts))
        return [
            positions_of(logits, ids[start:], self.n_logprobs)
            for logits, ids, start in zip(self.logits, sequences, starts, strict=True)
        ]
