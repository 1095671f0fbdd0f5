"""The policy in training, in place of the model that a guard file names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.sampling import SamplingSpec

if TYPE_CHECKING:
    from grpo_guard.logprob.coin import PublicCoin

_LOADING: Final = ("model", "dtype", "device", "revision")
"""What a file says of a model that is to be loaded."""


@dataclass(frozen=True, slots=True)
class Live:
    """What a guard file is put on: a policy in memory, and what its nodes have agreed on.

    Args:
        model: The very object that is being trained.
        tokenizer: Its tokenizer.
        sampling: What every node is declared to sample with.
        coin: Under which nodes sample; None where they do not, and seed replay is refused.
        slots: Completions that each node gives to a prompt; for seed replay.
        nodes: Names of the nodes; for seed replay.
    """

    model: Any
    tokenizer: Any
    sampling: SamplingSpec
    coin: PublicCoin | None = None
    slots: int | None = None
    nodes: Collection[str] | None = None

    def fill_defaults(self, said: Mapping[str, Any], maker: Callable[..., Any]) -> dict[str, Any]:
        """Options as a file says them, with those filled in that the file may leave out here."""
        sampling = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self.sampling).items()
            if value is not None
        }
        unsaid: dict[str, Any] = {"model": "-", "sampling": sampling}
        if _required(maker, "coin"):
            unsaid["coin"] = "-"
        return unsaid | dict(said)

    def override(self, arguments: Mapping[str, Any], maker: Callable[..., Any]) -> dict[str, Any]:
        """Arguments as a file gives them, with the live policy in place of what it names.

        Raises:
            ValueError: ``maker`` replays seeds, and there is no coin.
        """
        kept = {name: value for name, value in arguments.items() if name not in _LOADING}
        kept |= {"model": self.model, "tokenizer": self.tokenizer, "sampling": self.sampling}
        if replays_seeds(maker):
            if self.coin is None:
                raise ValueError(
                    "expected nodes that sample under a public coin, got none; eval swarm has them"
                )
            kept.pop("run", None)
            kept |= {"coin": self.coin, "slots": self.slots, "nodes": self.nodes}
        return kept


def reads_policy(maker: Callable[..., Any]) -> bool:
    """Whether a verifier's class or a preset is built on the policy and its declared sampler.

    A class that loads a model without a sampler, such as a reference of one's own, keeps its model.
    """
    makers = (maker, getattr(maker, "from_pretrained", maker))
    return any("sampling" in inspect.signature(made).parameters for made in makers)


def replays_seeds(maker: Callable[..., Any]) -> bool:
    """Whether a verifier's class or a preset needs nodes that sample under a public coin."""
    return "coin" in inspect.signature(maker).parameters


def _required(maker: Callable[..., Any], name: str) -> bool:
    found = inspect.signature(maker).parameters.get(name)
    return found is not None and found.default is found.empty
