"""LengthVerifier: is a completion longer than its question and its peers explain?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, Literal, TypeAlias, Unpack

from grpo_guard.completion import Completion
from grpo_guard.content.length.compare import Comparison
from grpo_guard.content.length.groups import Group, Member, RewardOf, reward_in_metadata
from grpo_guard.content.length.redundancy import Redundancy, Subject, compressed, measure
from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.content.length.statistics import Excess
from grpo_guard.content.rules import RuleOptions, RuleVerifier
from grpo_guard.content.severity import LENGTH, Severity
from grpo_guard.nodes.lengths import NodeMemory
from grpo_guard.verdict import Cause, Finding, Verdict, abstain, accept, reject

OnLong: TypeAlias = Literal["reject", "scale"]

# Shares of words from which a text is padding whatever its peers do. Of 1,320 completions of two
# models and 3,000 GSM8K solutions, 0.5 % repeat 34 % of their words or more.
_REPEATED, _REPEATED_OR_ECHOED = 0.42, 0.7
_FEWEST_WORDS = 40
# Padding that is fluent and new: looked for only in what is already longer than its peers.
_SUSPECT_P = 0.08
_SUSPECT_RATIO = 1.5
_WASTE, _WASTE_OVER_PEERS = 0.35, 0.3
# With fewer peers than a judgement by length needs, both have to be plain.
_FEW_RATIO, _FEW_WASTE = 2.0, 0.5
# In fewer words the shares are noise: one sentence off the subject is half of a short answer.
_FEWEST_WASTED = 12
_LEAST_EASE = 0.4
# Share of the excess that the waste has to explain.
_EXPLAINED = 0.6
# What zlib makes no smaller than this holds no repetition worth a closer look.
_COMPRESSIBLE = 0.4


class LengthVerifier(RuleVerifier):
    """Rejects blatant padding, and scales the reward of what is merely long.

    Against the DoS attack of "Hail to the Thief" (arXiv 2511.09780), which neither log-probs nor
    judges see. Three kinds of evidence, each a finding of its own:

    - ``long``: against the others of the same prompt (and worth, where ``reference`` or a reward
      says it), on the logarithm, by median and MAD; rejects where p < ``alpha``.
    - ``padded``: longer than its peers, and words that repeat an earlier step, echo the question
      or stay off its subject explain most of the excess.
    - ``redundant``: mostly repetition or echo, whatever the others do.
    - ``long_node``: from a node that `NodeMemory` has convicted, and longer than its peers'
      median. Without a memory the verifier is stateless.

    A completion whose prompt nobody else answered **abstains**: that is not its author's doing, so
    it must not reject, and a bare length is evidence for neither side, so it must not accept. With
    one peer or more the verdict is ACCEPT or REJECT, since how long it is *is* its author's doing.
    Few peers make large p-values, so that their doubt is the completion's benefit, never ours to
    abstain on; what a node gains by long work there, the memory finds over many prompts.

    What it cannot see: a group that is fluent padding as a whole, from nodes that are not
    followed; and the choice of the longest of many honest samples in a single completion, which
    only the memory and the scaling answer.

    Args:
        alpha: Chance of rejecting an honest completion for its length alone, in (0, 0.5).
        on_long: What becomes of completions that are long but not blatant. ``"reject"``: nothing,
            they are accepted; only the blatant reject. ``"scale"``: they are accepted with a
            finding ``long_scaled`` that names the factor which `LengthScaling` gives their reward.
        min_peers: Equals from other nodes to compare with; where there are fewer, all others of
            the prompt count, and padding has to be plain.
        reward_of: Reward of a completion, to compare equals with equals; None = by ``reference``.
        reward_key: Read it from ``metadata[reward_key]`` instead. Only where you write the metadata
            yourself: from a peer it is a claim.
        memory: Evidence on nodes over many batches; True = a `NodeMemory` with its defaults.
        scaling: The factors under ``"scale"``.
        **rules: ``severity``, ``store`` and ``batch_alpha`` of `RuleVerifier`.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "length"
    KINDS = frozenset(LENGTH)

    def __init__(
        self,
        *,
        alpha: float = 1e-3,
        on_long: OnLong = "reject",
        min_peers: int = 3,
        reward_of: RewardOf | None = None,
        reward_key: str | None = None,
        memory: NodeMemory | bool | None = None,
        scaling: LengthScaling | None = None,
        **rules: Unpack[RuleOptions],
    ) -> None:
        super().__init__(**rules)
        if not 0 < alpha < 0.5:
            raise ValueError(f"LengthVerifier.alpha: expected a number in (0, 0.5), got {alpha!r}")
        if on_long not in ("reject", "scale"):
            raise ValueError(
                f"LengthVerifier.on_long: expected 'reject' or 'scale', got {on_long!r}"
            )
        if isinstance(min_peers, bool) or not isinstance(min_peers, int) or min_peers < 1:
            raise ValueError(
                f"LengthVerifier.min_peers: expected an integer >= 1, got {min_peers!r}"
            )
        self.alpha = alpha
        self.on_long = on_long
        self.min_peers = min_peers
        self.reward_of = reward_in_metadata(reward_key) if reward_key else reward_of
        # A file can only say yes or no.
        self.memory = NodeMemory(store=self.store) if memory is True else memory or None
        self.scaling = scaling or LengthScaling()

    @property
    def author_can_abstain(self) -> str | None:
        return (
            f"{self.name} has nothing to compare with where all other completions of a prompt were "
            "rejected before it, as who sends all of them can arrange; let "
            "Policy(on_long='scale') judge length"
        )

    def state_dict(self) -> dict[str, Any]:
        """What is counted, and the nodes' records, as plain JSON values."""
        lengths = None if self.memory is None else self.memory.state_dict()
        return {**super().state_dict(), "lengths": lengths}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave.

        Raises:
            ValueError: it is not of that form, or of a verifier with a memory where this has none.
        """
        lengths = state.get("lengths") if isinstance(state, dict) else None
        if (lengths is None) is not (self.memory is None):
            raise ValueError("length: expected the state of a verifier with the same memory")
        super().load_state_dict(state)
        if self.memory is not None and lengths is not None:
            self.memory.load_state_dict(lengths)

    def look(self, batch: Sequence[Completion]) -> list[Verdict]:
        comparison = Comparison(batch, self.reward_of, self.min_peers)
        convicted: dict[str, float] = {}
        if self.memory is not None:
            self.memory.observe(comparison.groups)
            convicted = self.memory.convicted()
        factors = self.scaling.factors(batch) if self.on_long == "scale" else [1.0] * len(batch)
        verdicts: dict[int, Verdict] = {}
        for group in comparison.groups:
            judge = _GroupJudge(self, batch, group, comparison, convicted, factors)
            # The longest first: what it shows of the group counts for the rest.
            for member in sorted(group, key=lambda m: -m.length):
                verdicts[member.index] = judge.verdict(member)
        return [verdicts[i] for i in range(len(batch))]


class _GroupJudge:
    """The verdicts of one group; what its members share is worked out once."""

    def __init__(
        self,
        verifier: LengthVerifier,
        batch: Sequence[Completion],
        group: Group,
        comparison: Comparison,
        convicted: dict[str, float],
        factors: Sequence[float],
    ) -> None:
        self.verifier = verifier
        self.batch = batch
        self.group = group
        self.comparison = comparison
        self.convicted = convicted
        self.factors = factors
        self._subject: Subject | None = None
        self._measured: dict[int, Redundancy] = {}
        self._padding = False

    def verdict(self, member: Member) -> Verdict:
        name = self.verifier.name
        peers, found = self.comparison.of(member, self.group)
        shown: list[Finding] = []
        # What rejects is the last that is looked for; what does not must not hide what would.
        for finding in self._findings(member, peers, found):
            shown.append(finding)
            if self.verifier.severities[finding.kind] is Severity.REJECT:
                # Padding and a node's record are rules: the p-value of the length is not theirs,
                # and a shared budget must not overrule them by it.
                by_length = found is not None and finding.kind == "long"
                p_value = found.p_value if found is not None and by_length else None
                return reject(name, p_value=p_value, findings=(finding, *shown[:-1]))
        if found is None:
            message = "no other completion of this prompt"
            return abstain(name, Cause.UNINFORMATIVE, message, findings=tuple(shown))
        p_value = None if shown else found.p_value
        return accept(name, p_value=p_value, findings=(*shown, *self._scaled(member, found)))

    def _findings(
        self, member: Member, peers: Sequence[Member], found: Excess | None
    ) -> Iterator[Finding]:
        if (redundant := self._redundant(member, found)) is not None:
            yield redundant
        if found is None:
            return
        for one in (self._long(member, found), self._long_node(member, found)):
            if one is not None:
                yield one
        if (padded := self._padded(member, peers, found)) is not None:
            yield padded

    def _long(self, member: Member, found: Excess) -> Finding | None:
        if found.p_value >= self.verifier.alpha:
            return None
        text = self.batch[member.index].text
        message = f"{_times(found)}; chance for honest work {found.p_value:.1e}"
        return Finding("long", message, char_span=(0, len(text)) if text else None)

    def _long_node(self, member: Member, found: Excess) -> Finding | None:
        evidence = self.convicted.get(member.node) if member.node is not None else None
        if evidence is None or found.ratio <= 1:
            return None
        message = (
            f"{_times(found)}, from a node whose work is longer than most others' "
            f"(e-value {evidence:.1e})"
        )
        return Finding("long_node", message)

    def _padded(self, member: Member, peers: Sequence[Member], found: Excess) -> Finding | None:
        if found.p_value > _SUSPECT_P or found.ratio < _SUSPECT_RATIO:
            return None
        few = len(peers) < self.verifier.min_peers
        if few and found.ratio < _FEW_RATIO:
            return None
        mine = self._measure(member.index)
        usual = median(self._measure(peer.index).waste for peer in peers[:16])
        # The longer it is against its peers, the less waste has to speak beside that.
        ease = 1.0 if few else _ease(found.p_value)
        needed = max(_FEW_WASTE if few else _WASTE * ease, usual + _WASTE_OVER_PEERS * ease)
        if mine.waste * mine.words < _FEWEST_WASTED and mine.bare < needed:
            return None
        if mine.waste < needed or mine.waste < _EXPLAINED * ease * (1 - 1 / found.ratio):
            return None
        message = (
            f"{_times(found)}, and {mine.waste:.0%} of its words bring nothing new "
            f"({_shares(mine)})"
        )
        return Finding("padded", message, char_span=mine.span)

    def _redundant(self, member: Member, found: Excess | None) -> Finding | None:
        text = self.batch[member.index].text
        # Most completions are neither long nor compressible and need no closer look; of a group in
        # which one is padded, none is spared it.
        usual = found is not None and found.ratio < _SUSPECT_RATIO and not self._padding
        if usual and (found.ratio < 1 or compressed(text) > _COMPRESSIBLE):  # type: ignore[union-attr]
            return None
        mine = self._measure(member.index)
        if mine.words < _FEWEST_WORDS:
            return None
        if mine.repeated < _REPEATED and mine.repeated + mine.echoed < _REPEATED_OR_ECHOED:
            return None
        self._padding = True
        message = f"most of the text is redundant ({_shares(mine)})"
        return Finding("redundant", message, char_span=mine.span)

    def _scaled(self, member: Member, found: Excess) -> tuple[Finding, ...]:
        factor = self.factors[member.index]
        if factor >= 1:
            return ()
        return (Finding("long_scaled", f"{_times(found)}; reward factor {factor:.4g}"),)

    def _measure(self, index: int) -> Redundancy:
        if self._subject is None:
            self._subject = Subject(self.batch[index].prompt_text)
        if index not in self._measured:
            self._measured[index] = measure(self.batch[index].text, self._subject)
        return self._measured[index]


def _ease(p_value: float) -> float:
    """1 where a length is barely suspect, falling to `_LEAST_EASE` where it all but rejects."""
    return min(1.0, max(1 + math.log10(max(p_value, 1e-9) / _SUSPECT_P) / 2.5, _LEAST_EASE))


def _times(found: Excess) -> str:
    return f"{found.ratio:.2f} times the median length of {found.peers} others"


def _shares(found: Redundancy) -> str:
    return (
        f"{found.repeated:.0%} repeated, {found.echoed:.0%} from the question, "
        f"{found.idle + found.foreign:.0%} off the subject, {found.restated:.0%} restated"
    )
