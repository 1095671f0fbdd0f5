"""SeedReplayVerifier: is this the one completion an honest node would have sent?"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import Message
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.scope import Scope
from grpo_guard.core.verdict import Cause, Finding, Verdict, abstain, accept, reject
from grpo_guard.logprob.coin import PublicCoin, canonical
from grpo_guard.logprob.encode import Encoded, EncodeError
from grpo_guard.logprob.encoded import malformed
from grpo_guard.logprob.noise import Family, require_replayable
from grpo_guard.logprob.profile import DriftProfile
from grpo_guard.logprob.replay.evidence import ReplayEvidence, describe, weigh_replay
from grpo_guard.logprob.replay.margins import Replay, edge_width
from grpo_guard.logprob.replay.slots import Place, SlotBook
from grpo_guard.logprob.stats import TokenStats
from grpo_guard.logprob.verifier import LogProbVerifier
from grpo_guard.nodes.store import NodeStore


class SeedReplayVerifier(LogProbVerifier):
    """Rejects completions other than those produced by their slots' seeds.

    For homogeneous swarms whose nodes sample under a public coin (`PublicCoin`, `generate`).
    Detects what no other check can: a wrong digit where the policy was unsure, and cherry-picking
    among honest samples (the longest of eighty). Honest nodes do not need bitwise identical
    hardware: score drift is allowed for (`evidence`).

    In training, call `begin_round` at the start of each round and pass ``slots`` and ``nodes``: a
    node that can name its own round or slot can draw as often as it likes. A slot is filled by its
    first accepted completion; `slots.missing()` lists the slots still empty.

    Errors, in addition to those of `LogProbVerifier`: a completion is REJECTED as MALFORMED if it
    has no ids, round, node or slot, belongs to another round or run, claims a slot that is not its
    node's or is already filled, answers a prompt other than the slot's, or was cut short. If the
    beacon of the current round is unknown, every verdict ABSTAINS as UNSUPPORTED; before
    `begin_round`, a round without a beacon was chosen by the author, so the completion is REJECTED.
    Short completions are judged like long ones: if drift can explain every differing token at
    ``alpha``, the completion is accepted, with a finding.

    The verifier cannot see tokens swapped for others that came within drift of being drawn (a few
    per completion, which leaves an attacker some variants of each slot's completion); slots left
    empty (count them); or, with top-p or min-p but no top-k of 63 or less, a token forged where the
    drawn token was not among the 64 most likely.

    Args:
        model: The policy, as for `LogProbVerifier`. A ``scorer`` given instead must support replay.
        tokenizer: The policy's tokenizer, as for `LogProbVerifier`.
        sampling: The declared sampler of every node, such as engine ``"vllm"``, temperature 1.0,
            top_k 50 and top_p 1.0. Without ``max_new_tokens``, only completions that end with EOS
            are known to be whole, and all others are rejected.
        run: Name of the run, for a coin without beacons.
        coin: The coin, in place of ``run``.
        slots: Number of completions each node owes per round or, if all nodes answer the same
            prompts, per prompt (its share of a group). If None, you vouch for `Completion.slot`,
            because a node that can name its own slot can draw as often as it likes.
        nodes: Names of the participating nodes. If None, you vouch for `Completion.node`.
        prompts: The list that each slot draws its own prompt from (`PublicCoin.prompt_index`). If
            None, all nodes answer the same prompts: either pass them to `begin_round`, or you vouch
            for `Completion.prompt`.
        family: The noise family used by the nodes: ``"grpo-guard"``, ``"vllm"`` for stock vLLM
            nodes, or ``"sglang"`` for stock SGLang nodes that sample deterministically without
            truncation.
        alpha: False-positive rate per completion, as for `LogProbVerifier`.
        store: Keeps filled slots across processes and restarts, or None to keep them in this
            object.
        **options: Further arguments of `LogProbVerifier`; ids are always required.

    Raises:
        ValueError: not exactly one of run and coin is given, the sampler's noise cannot be
            replayed, or the scorer or profile does not replay; also the errors of
            `LogProbVerifier`.
    """

    name = "seed_replay"
    scope: Scope = "history"
    shares_calls = False  # slots are filled in the order of the calls
    replays = True

    def __init__(
        self,
        model: Any | None = None,
        tokenizer: Any = None,
        *,
        sampling: SamplingSpec,
        slots: int | None = None,
        run: str | None = None,
        coin: PublicCoin | None = None,
        nodes: Collection[str] | None = None,
        prompts: Sequence[str | Sequence[Message]] | None = None,
        family: Family = "grpo-guard",
        alpha: float = 1e-3,
        store: NodeStore | None = None,
        **options: Any,
    ) -> None:
        if (run is None) is (coin is None):
            raise ValueError(
                f"run, coin: expected exactly one of them, got {'both' if coin else 'neither'}"
            )
        require_replayable(sampling, family)
        if options.setdefault("require_ids", True) is not True:
            raise ValueError("require_ids: expected True: text without ids cannot be replayed")
        super().__init__(model, tokenizer, sampling=sampling, alpha=alpha, **options)
        if not getattr(self.scorer, "replays", False):
            raise ValueError(
                f"scorer: expected one that replays a coin, got {type(self.scorer).__name__}; "
                "pass the policy as a transformers model"
            )
        if not self.profile.replay:
            raise ValueError(
                f"profile {self.profile.name!r}: expected replay rates, got none; calibrate on "
                "completions drawn under the coin"
            )
        if prompts is not None and (isinstance(prompts, str) or not len(prompts)):
            raise ValueError(f"prompts: expected a list of at least one, got {prompts!r:.80}")
        self.coin = coin or PublicCoin(str(run))
        self.slots = SlotBook(slots, nodes=nodes, per_prompt=prompts is None, store=store)
        self.prompts = prompts
        # If scores agree bitwise, the edge is exact, and tokens near it were never up for choice.
        exact = self.profile.tau == 0
        self.replay = Replay(family, 0.0, 0.0) if exact else Replay(family)

    def begin_round(
        self, round: int, prompts: Sequence[str | Sequence[Message]] | None = None
    ) -> None:
        """Begin a round: only its completions count from now on; see `SlotBook.begin_round`."""
        self.slots.begin_round(round, prompts)

    def verify_each(self, batches: Sequence[Sequence[Completion]]) -> list[list[Verdict]]:
        return [self._filled(batch) for batch in batches]

    def _filled(self, batch: Sequence[Completion]) -> list[Verdict]:
        # Another process may have begun the round, and completions from other rounds are rejected.
        with self.slots.fresh():
            round = self.slots.round
        (verdicts,) = super().verify_each([batch])
        filled: list[Place] = []
        with self.slots.held(lambda: self.slots.fill_again(filled)):
            for i, (completion, verdict) in enumerate(zip(batch, verdicts, strict=True)):
                # Fill only after judging: a forgery must not keep the honest completion out of its
                # slot.
                if verdict.accepted:
                    verdicts[i] = self._filling(completion, verdict, round, filled)
        return verdicts

    def state_dict(self) -> dict[str, Any]:
        """Return which slots of the current round are filled, as plain JSON values."""
        return self.slots.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state_dict`; raises ValueError for anything else."""
        self.slots.load_state_dict(state)

    def _filling(
        self, completion: Completion, verdict: Verdict, round: int | None, filled: list[Place]
    ) -> Verdict:
        """Fill the slot claimed by an accepted completion, and add the slot to ``filled``.

        Returns the verdict, which was reached in ``round``, or a refusal if the slot is taken.
        """
        try:
            place = self.slots.place(completion)
            free = self.slots.fill(place)
        except EncodeError as error:
            if self.slots.round == round:
                return reject(self.name, error.cause, str(error), seconds=verdict.seconds)
            late = f"its round ended while it was verified: {error}"
            return abstain(self.name, Cause.UNSUPPORTED, late, seconds=verdict.seconds)
        if free:
            filled.append(place)
            return verdict
        finding = Finding("slot_filled", f"a second completion for slot {completion.slot}")
        return reject(self.name, Cause.MALFORMED, findings=(finding,), seconds=verdict.seconds)

    def encode(self, completion: Completion) -> Encoded:
        place = self.slots.place(completion)
        self._require_run(completion.metadata)
        try:
            self._require_prompt(completion, place)
            seed = self.coin.seed(
                round=place.round, node=place.node, slot=place.slot, prompt=completion.prompt
            )
        except KeyError:
            if self.slots.round is None:  # the round was chosen by the author
                message = f"round {place.round}: the coin has no beacon for it"
                raise malformed(message, "wrong_round") from None
            raise EncodeError(
                Cause.UNSUPPORTED, f"the coin's beacon for round {place.round} is not known"
            ) from None
        except (TypeError, ValueError, RecursionError) as error:  # as in `SlotBook.place`
            raise malformed(f"node or prompt: {error}") from None
        _require_known(completion)
        encoded = super().encode(completion)
        self._require_usual_prompt(completion, encoded)
        self._require_whole(encoded)
        return replace(encoded, seed=seed)

    def score(self, sequences: Sequence[Encoded], profile: DriftProfile) -> list[TokenStats]:
        margin = max(profile.mass_margin, edge_width(self.sampling, self.replay))
        stats: list[TokenStats] = self.scorer.score(
            sequences, self.sampling, mass_margin=margin, replay=self.replay
        )
        return stats

    def _judge(
        self, completion: Completion, encoded: Encoded, stats: TokenStats, profile: DriftProfile
    ) -> Verdict:
        evidence = weigh_replay(stats, profile)
        notes = _notes_of(evidence)
        if evidence.p_value < self.alpha:
            finding = describe(self.encoder, completion, encoded, stats, evidence)
            return reject(self.name, p_value=evidence.p_value, findings=(finding, *notes))
        return accept(self.name, p_value=evidence.p_value, findings=notes)

    def _require_run(self, metadata: Mapping[str, Any]) -> None:
        """Require that the run, if the author names one, is the coin's."""
        named = metadata.get("run")
        # Only a string is compared and printed: arrays raise on comparison and deep lists on
        # printing, and an exception here would abort the check of the whole batch.
        if named is None or (isinstance(named, str) and named == self.coin.run):
            return
        shown = repr(named[:80]) if isinstance(named, str) else type(named).__name__
        raise malformed(f"run {shown}: expected {self.coin.run!r}", "wrong_run")

    def _require_prompt(self, completion: Completion, place: Place) -> None:
        if self.prompts is None:
            return
        index = self.coin.prompt_index(
            round=place.round, node=place.node, slot=place.slot, prompts=len(self.prompts)
        )
        if canonical(completion.prompt) != canonical(self.prompts[index]):
            message = f"slot {place.slot} is for prompt {index}, not for this one"
            raise malformed(message, "wrong_prompt")

    def _require_usual_prompt(self, completion: Completion, encoded: Encoded) -> None:
        """Allow only one encoding of the prompt: each leads to a different completion, so two
        encodings would leave the author a choice."""
        if completion.prompt_ids is None or self.encoder.trust_prompt_ids:
            return
        if encoded.prompt_ids != self.encoder.own_prompt_ids(completion)[0]:
            raise malformed(
                "prompt_ids: expected the tokenizer's own for this prompt, with special tokens "
                "and, for messages, a new turn. If they come from your own trainer and not from "
                "the peer, pass trust_prompt_ids=True",
                "unusual_prompt_ids",
            )

    def _require_whole(self, encoded: Encoded) -> None:
        """Refuse a completion that was cut short: it matches the replay, but only part of it."""
        ids, limit = encoded.completion_ids, self.sampling.max_new_tokens
        window = self.encoder.window
        full = len(ids) == limit or len(encoded.prompt_ids) + len(ids) == window
        # If the completion ends with tool output, the author's next turn is missing.
        ends_given = bool(encoded.given) and encoded.given[-1][1] == len(ids)
        if ends_given or (ids[-1] not in self.encoder.eos_ids and not full):
            raise malformed(
                f"{len(ids)} tokens that do not end with EOS while max_new_tokens is "
                f"{limit or 'not declared'}: cut short, or sent without the EOS",
                "cut_short",
            )


def _require_known(completion: Completion) -> None:
    """Refuse unverified tool output: by rewording it, a node could draw as often as it likes."""
    if completion.given is not None and completion.verified_spans is None:
        raise malformed(
            "given: expected verified tool output, got a claim; give the Guard an environment= "
            "that reproduces it",
            "unknown_given",
        )


def _notes_of(evidence: ReplayEvidence) -> tuple[Finding, ...]:
    if not evidence.mismatches:
        return ()
    largest = float(np.max(evidence.excess))
    message = (
        f"{evidence.mismatches} of {len(evidence.excess)} tokens differ from the replay, by up to "
        f"{largest:.2g} logits"
    )
    return (Finding("replay_drift", message),)
