"""Use the policy in training instead of the model named in a guard file."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.core.sampling import SamplingSpec

if TYPE_CHECKING:
    from grpo_guard.logprob.coin import PublicCoin

_LOADING: Final = ("model", "dtype", "device", "revision")
"""Options of a guard file that describe a model to load."""


@dataclass(frozen=True, slots=True)
class Live:
    """The in-memory policy that a guard file runs on, plus the settings agreed on by all nodes.

    Args:
        model, tokenizer: The model object being trained, and its tokenizer.
        sampling: The sampling declared by every node.
        coin: The public coin that nodes sample under; without a coin, seed replay is refused.
        slots, nodes: For seed replay: the number of completions per node and prompt, and the nodes'
            names.
    """

    model: Any
    tokenizer: Any
    sampling: SamplingSpec
    coin: "PublicCoin | None" = None
    slots: int | None = None
    nodes: Collection[str] | None = None

    def fill_defaults(
        self, explicit: Mapping[str, Any], maker: Callable[..., Any]
    ) -> dict[str, Any]:
        """Return a guard file's options, plus placeholders for required options that a file can
        omit when a policy is in memory."""
        sampling = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self.sampling).items()
            if value is not None
        }
        defaults: dict[str, Any] = {"model": "-", "sampling": sampling}
        if _required(maker, "coin"):
            defaults["coin"] = "-"
        return defaults | dict(explicit)

    def override(self, arguments: Mapping[str, Any], maker: Callable[..., Any]) -> dict[str, Any]:
        """Return a guard file's arguments with this policy and its sampling instead of the model
        and sampler named in the file. Raises ValueError if ``maker`` replays seeds, but there is no
        coin."""
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
    """Whether a verifier class or a preset is built on the policy and a declared sampler.

    A class that loads a model without a sampler, such as a reference of your own, keeps its model.
    """
    makers = (maker, getattr(maker, "from_pretrained", maker))
    return any("sampling" in inspect.signature(made).parameters for made in makers)


def replays_seeds(maker: Callable[..., Any]) -> bool:
    """Whether a verifier class or a preset needs nodes that sample under a public coin."""
    return "coin" in inspect.signature(maker).parameters


def _required(maker: Callable[..., Any], name: str) -> bool:
    found = inspect.signature(maker).parameters.get(name)
    return found is not None and found.default is found.empty
