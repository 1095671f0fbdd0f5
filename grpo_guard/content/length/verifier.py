"""`LengthVerifier`: finds completions longer than their question and peers can explain."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

from grpo_guard.content.length.compare import (
    Excess,
    RewardOf,
    compared,
    groups_of,
    reward_in_metadata,
)
from grpo_guard.content.length.redundancy import Redundancy, blatantly_redundant
from grpo_guard.content.rules import RuleOptions, RuleVerifier
from grpo_guard.content.severity import REJECT, Kind, Severity
from grpo_guard.core.arguments import require_count, require_level
from grpo_guard.core.completion import Completion
from grpo_guard.core.p_values import p_text
from grpo_guard.core.scope import Scope
from grpo_guard.core.verdict import Cause, Finding, Verdict, abstain, accept, reject
from grpo_guard.nodes.lengths import NodeMemory


class LengthVerifier(RuleVerifier):
    """Rejects padded completions in a swarm whose nodes all have the same weights.

    Counters the DoS attack of "Hail to the Thief" (arXiv 2511.09780), which neither log-probs nor
    judges detect. If models differ, length is no reason to reject: the verifier rejects 67 of 1,320
    right completions by five current models, 44 of them among the 186 by a model that thinks at
    length. In that case, consider `LengthScaling`. There are three kinds of evidence, each with its
    own finding:

    - ``long``: longer than what more than half of the other nodes write for the same prompt (and
      with the same worth, if a reward or a reference given by most nodes is known), on a log
      scale; rejects if p < ``alpha``. At least two other nodes are needed: a single node, however
      much it sends, is not a reference.
    - ``redundant``: mostly repeats itself or echoes the question, whatever the other nodes do.
    - ``long_node``: from a node that `NodeMemory` has convicted, and longer than the other nodes'
      work. Without a memory, the verifier is stateless.

    If a prompt has only one completion, the verifier **abstains**: this is not the author's doing,
    so it must not reject, and a length alone supports neither side, so it must not accept. With a
    second completion the verdict is ACCEPT or REJECT, because the author *does* choose the length.
    If fewer than two other nodes answered, the completion gets the benefit of the doubt and is
    accepted without a p-value; if a node profits from long work there, the memory finds it over
    many prompts.

    Cannot detect: anything but ``redundant`` if nodes have no names or if each node answers its own
    prompts; a group that consists entirely of fluent padding, from nodes that are not followed;
    and, in a single completion, fluent padding up to about four times the length, or the longest of
    many honest samples being chosen. Only the memory and the scaling counter these last two.

    Args:
        alpha: Probability of rejecting an honest completion for its length alone, in (0, 0.5).
        min_peers: Minimum number of completions of equal worth, from at least two other nodes, for
            a comparison; with fewer, all work of other nodes counts.
        reward_of: Function that returns the reward of a completion, to compare like with like;
            None to judge by the ``reference`` given by most nodes of the prompt.
        reward_key: Key of the completion's metadata from which to read the reward instead. Use it
            only if you write the metadata yourself: from a peer, it is just a claim.
        memory: Evidence about nodes over many batches; True for a `NodeMemory` with its defaults.
        **rules: Options passed to `RuleVerifier`: ``severity``, ``store``, and those for counting.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "length"
    # For nodes with the same weights; if models differ, length scales the reward instead.
    KINDS: ClassVar[Mapping[str, Kind]] = {"long": REJECT, "long_node": REJECT, "redundant": REJECT}
    scope: Scope = "batch"

    def __init__(
        self,
        *,
        alpha: float = 1e-3,
        min_peers: int = 3,
        reward_of: RewardOf | None = None,
        reward_key: str | None = None,
        memory: NodeMemory | bool | None = None,
        **rules: Unpack[RuleOptions],
    ) -> None:
        super().__init__(**rules)
        require_level("LengthVerifier.alpha", alpha, below=0.5)
        require_count("LengthVerifier.min_peers", min_peers)
        self.alpha = alpha
        self.min_peers = min_peers
        self.reward_of = reward_in_metadata(reward_key) if reward_key else reward_of
        # Configuration files can only say yes or no.
        self.memory = NodeMemory(store=self.store) if memory is True else memory or None
        if self.memory is not None:
            self.scope = "history"

    @property
    def author_can_abstain(self) -> str | None:
        return (
            f"{self.name} has nothing to compare with if all other completions of a prompt were "
            "rejected before it, which a sender of all of them can arrange; use "
            "Policy(on_long='scale') instead"
        )

    @property
    def idle_without(self) -> Mapping[str, str]:
        return {"node": "compares no lengths"}

    def state_dict(self) -> dict[str, Any]:
        """Return the counts and the nodes' records as plain JSON values."""
        lengths = None if self.memory is None else self.memory.state_dict()
        return {**super().state_dict(), "lengths": lengths}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`.

        Raises:
            ValueError: the state is malformed, or only one of the two verifiers has a memory.
        """
        lengths = state.get("lengths") if isinstance(state, dict) else None
        if (lengths is None) is not (self.memory is None):
            raise ValueError("length: expected the state of a verifier with the same memory")
        super().load_state_dict(state)
        if self.memory is not None and lengths is not None:
            self.memory.load_state_dict(lengths)

    def look(self, batch: Sequence[Completion]) -> list[Verdict]:
        groups = groups_of(batch, self.reward_of)
        convicted: dict[str, float] = {}
        if self.memory is not None:
            self.memory.observe(groups)
            convicted = self.memory.convicted()
        verdicts: dict[int, Verdict] = {}
        for group, excesses in compared(groups, self.min_peers):
            prompt, alone = batch[group[0].index].prompt_text, len(group) == 1
            for member, excess in zip(group, excesses, strict=True):
                text = batch[member.index].text
                evidence = None if member.node is None else convicted.get(member.node)
                shown = [
                    _redundant(blatantly_redundant(text, prompt)),
                    _long(excess, self.alpha, text),
                    _long_node(excess, evidence),
                ]
                verdicts[member.index] = self._verdict([f for f in shown if f], excess, alone)
        return [verdicts[i] for i in range(len(batch))]

    def _verdict(self, shown: list[Finding], excess: Excess | None, alone: bool) -> Verdict:
        rejecting = [f for f in shown if self.severities[f.kind] is Severity.REJECT]
        if rejecting:
            # Redundancy and a node's record have no p-value. The p-value of the length must not be
            # used for them, or it would let a shared budget overrule them.
            by_length = excess is not None and {f.kind for f in rejecting} == {"long"}
            p_value = excess.p_value if excess is not None and by_length else None
            others = [f for f in shown if f not in rejecting]
            return reject(self.name, p_value=p_value, findings=(*rejecting, *others))
        if alone:
            message = "no other completion of this prompt"
            return abstain(self.name, Cause.UNINFORMATIVE, message, findings=tuple(shown))
        p_value = None if shown or excess is None else excess.p_value
        return accept(self.name, p_value=p_value, findings=tuple(shown))


def _redundant(found: Redundancy | None) -> Finding | None:
    if found is None:
        return None
    shares = f"{found.repeated:.0%} repeated, {found.echoed:.0%} from the question"
    return Finding("redundant", f"most of the text is redundant ({shares})", char_span=found.span)


def _long(excess: Excess | None, alpha: float, text: str) -> Finding | None:
    if excess is None or excess.p_value >= alpha:
        return None
    message = f"{_times(excess)}; chance for honest work {p_text(excess.p_value)}"
    return Finding("long", message, char_span=(0, len(text)) if text else None)


def _long_node(excess: Excess | None, evidence: float | None) -> Finding | None:
    if excess is None or evidence is None or excess.log_ratio <= 0:
        return None
    whose = f"from a node whose work is longer than most others' (e-value {evidence:.1e})"
    return Finding("long_node", f"{_times(excess)}, {whose}")


def _times(excess: Excess) -> str:
    return f"{excess.ratio:.2f} times the median length of {excess.nodes} other nodes"
