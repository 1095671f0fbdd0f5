"""Which rows of a file are verified together: those of one prompt and round, and all segments of a
rollout."""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import prompt_key
from grpo_guard.core.rollouts import rollout_of

_NONE: Final = -(2**63)
"""Stands for no round and for no node."""
_ENOUGH: Final = 0.75
"""Share of the nodes that make the most common claim which must make a claim for it to count."""
_MOST_JOINED: Final = 256
"""Maximum number of groups that rollouts join into one batch, which is held in memory."""
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


def group_of(completion: Completion) -> int:
    """Return a 64-bit key shared by completions of the same prompt and claimed round.

    An attacker who finds two prompts with the same key gets them verified in one batch, which does
    no harm.
    """
    return _key(f"{completion.round} {prompt_key(completion.prompt)}")


def prompt_of(completion: Completion) -> int:
    """Return a 64-bit key shared by completions of the same prompt."""
    return _key(str(prompt_key(completion.prompt)))


def round_of(completion: Completion | None) -> int:
    """Return the round that a completion claims; a number that no round has if it claims none."""
    return _NONE if completion is None or completion.round is None else completion.round


def node_of(completion: Completion | None) -> int:
    """Return a key of a completion's sender; a number that no key has if it names none."""
    if completion is None or completion.node is None:
        return _NONE
    return _key(completion.node) - 2**63


def label_of(completion: Completion | None) -> int:
    """Return a key of the rollout that a completion is a segment of; 0 if of none."""
    found = None if completion is None else rollout_of(completion)
    return 0 if found is None else _key(repr(found)) or 1


def agreed_rounds(
    rounds: NDArray[np.int64], nodes: NDArray[np.int64], prompts: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return each row's round, shape [n]: the one it claims, if enough other nodes agree.

    By a claim of its own, or by none, a node could otherwise leave the peers that it is compared
    with. A claim counts if at least two nodes make it for the prompt, and `_ENOUGH` of those that
    make the most common one; any other row joins the first of its prompt that counts. Where no two
    nodes agree on a prompt, as when each has prompts of its own, the claims of all rows decide in
    the same way, and any other row joins the row before. All are 0 if no claim counts.

    Args:
        rounds: Claimed rounds, as from `round_of`, shape [n].
        nodes: Senders, as from `node_of`, shape [n].
        prompts: Keys of the prompts, as from `prompt_of`, shape [n].
    """
    for_prompt = _agreed(rounds, nodes, prompts)
    decided = np.isin(prompts, prompts[for_prompt])
    counts = np.where(decided, for_prompt, _agreed(rounds, nodes, np.zeros_like(prompts)))
    at = np.flatnonzero(counts)
    if not len(at):
        return np.zeros_like(rounds)
    behind = np.searchsorted(at, np.arange(len(rounds)), side="right") - 1
    found: NDArray[np.int64] = rounds[at[np.maximum(behind, 0)]]
    by_prompt = at[np.argsort(prompts[at], kind="stable")]
    first = by_prompt[np.minimum(np.searchsorted(prompts[by_prompt], prompts), len(at) - 1)]
    joins = ~counts & (prompts[first] == prompts)
    found[joins] = rounds[first[joins]]
    return found


def _agreed(
    rounds: NDArray[np.int64], nodes: NDArray[np.int64], within: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Return whether each row's claim counts among the rows with the same ``within``, shape [n]."""
    pairs, pair = np.unique(np.stack([within.view(np.int64), rounds]), axis=1, return_inverse=True)
    pair = pair.reshape(-1)  # NumPy 2.0 gives it another shape
    named = (rounds != _NONE) & (nodes != _NONE)
    senders = np.unique(np.stack([pair[named], nodes[named]]), axis=1)[0]
    count = np.bincount(senders, minlength=pairs.shape[1])
    _, group = np.unique(pairs[0], return_inverse=True)
    most = np.zeros(len(group) + 1, np.int64)
    np.maximum.at(most, group.reshape(-1), count)
    enough = (count >= 2) & (count >= _ENOUGH * most[group.reshape(-1)])
    found: NDArray[np.bool_] = enough[pair]
    return found


def groups_of(
    prompts: NDArray[np.uint64], rounds: NDArray[np.int64], rollouts: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return the key of each row's group, shape [n]: its prompt and round, joined with the groups
    of its rollout's other segments.

    The segments of a rollout have different prompts but are judged as one, so they must be in the
    same batch, together with the answers that each segment is compared with. Beyond `_MOST_JOINED`
    groups nothing is joined: with one label in all its rows, a node could have the whole file held
    in memory at once.
    """
    groups: NDArray[np.uint64] = prompts + rounds.view(np.uint64) * _ODD
    first, parents, sizes = dict[tuple[int, int], int](), dict[int, int](), dict[int, int]()

    def root(group: int) -> int:
        while (parent := parents.get(group)) is not None:
            # Halve the path for the next lookup.
            parents[group] = parents.get(parent, parent)
            group = parent
        return group

    for row in np.flatnonzero(rollouts).tolist():
        group = int(groups[row])
        one = root(first.setdefault((int(rollouts[row]), int(rounds[row])), group))
        other = root(group)
        size = sizes.get(one, 1) + sizes.get(other, 1)
        if one != other and size <= _MOST_JOINED:
            parents[max(one, other)] = min(one, other)
            sizes[min(one, other)] = size
    if not parents:
        return groups
    return np.array([root(int(group)) for group in groups], np.uint64)


def whole_groups(
    groups: ArrayLike, most: int, rounds: ArrayLike | None = None
) -> Iterator[list[int]]:
    """Yield batches of row numbers, with all rows of a group in the same batch, wherever they are
    in the file: verifiers that compare completions within a group must see the whole group.

    Args:
        groups: Each row's key, as from `group_of`, shape [n].
        most: Maximum number of rows in a batch, unless a single group has more.
        rounds: Each row's round, shape [n]. Batches are in the order of the rounds' first rows, and
            none holds groups of two rounds: a ledger records a batch as one round.
    """
    _, first, group = np.unique(
        np.asarray(groups, np.uint64), return_index=True, return_inverse=True
    )
    if not len(first):
        return
    first_of = first[group.reshape(-1)]
    of_rounds = np.zeros_like(first_of)
    if rounds is not None:
        _, begins, which = np.unique(rounds, return_index=True, return_inverse=True)
        of_rounds = begins[which.reshape(-1)][first_of]
    order = np.lexsort((first_of, of_rounds))
    ends = [*(np.flatnonzero(np.diff(first_of[order])) + 1).tolist(), len(order)]
    in_order = of_rounds[order]
    begin = reached = 0
    for end in ends:
        full = end - begin > most or in_order[reached] != in_order[begin]
        if full and reached > begin:
            yield order[begin:reached].tolist()
            begin = reached
        reached = end
    yield order[begin:].tolist()


def _key(text: str) -> int:
    hashed = text.encode("utf-8", "backslashreplace")
    return int.from_bytes(blake2b(hashed, digest_size=8).digest(), "little")
