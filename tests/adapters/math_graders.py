"""Graders based on math-verify and `trl.rewards`, in a module that worker processes import fast."""

import re
import threading

from math_verify import parse, verify
from trl.rewards import (
    accuracy_reward,
    get_cosine_scaled_reward,
    reasoning_accuracy_reward,
    think_format_reward,
)


class OfText:
    """Adapt a function of `trl.rewards`, which reads conversations, to plain texts."""

    def __init__(self, call, *columns):
        self.call, self.columns = call, columns
        self.__name__ = call.__name__

    def __call__(self, completions, answer, **kwargs):
        messages = [[{"role": "assistant", "content": text}] for text in completions]
        given = {name: kwargs[name] for name in self.columns}
        return self.call(messages, solution=[f"${a}$" for a in answer], **given)


def verified(answer, completions):
    """math-verify as most people call it, with its own alarms."""
    pairs = zip(answer, completions, strict=True)
    return [float(verify(parse(f"${a}$"), parse(c))) for a, c in pairs]


def alarmed(completions, answer, **kwargs):
    assert threading.current_thread() is threading.main_thread()
    return verified(answer, completions)


async def length(completions, **kwargs):
    return [float(len(text)) for text in completions]


class FailsOn:
    """Fails on a batch that contains a given text, after logging half of its metrics."""

    __name__ = "fails"

    def __init__(self, text, how):
        self.text, self.how = text, how

    def __call__(self, completions, answer, log_extra, log_metric, **kwargs):
        log_extra("length", [len(c) for c in completions])
        if self.text in completions:
            self.how()
        log_metric("calls", 1.0)
        return verified(answer, completions)


def stuck():
    re.match("(a+)+$", "a" * 40 + "b")


def gone():
    raise ConnectionError("no sandbox")


FUNCTIONS = {
    "math_verify": [alarmed],
    "trl_rewards": [
        OfText(accuracy_reward, "log_extra"),
        OfText(reasoning_accuracy_reward, "log_extra"),
        OfText(get_cosine_scaled_reward(max_len=20), "completion_ids"),
        OfText(think_format_reward),
        alarmed,
        length,
    ],
}
