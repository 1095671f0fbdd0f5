"""Atropos: a guarding proxy between other nodes' environments and the trainer's server
(docs/other-trainers.md).

Environments get the proxy's address as ``rollout_server_url``. The proxy judges every row that they
post, and forwards to Atropos's server only what may be trained on. It exposes only those of the
server's other paths that environments need, because the server's handlers do not authenticate
anyone, and ``/register``, ``/batch`` and ``/reset_data`` belong to the trainer. So environments
must not be able to reach the server itself.

With ``tokens``, each sender is identified by its own token (``http://any:TOKEN@host`` as the
address), and the guard remembers the sender's completions under the name assigned to the token;
names given in rows are ignored.
"""

import asyncio
import json
import logging
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from grpo_guard.adapters.atropos.fields import (
    TEMPERATURES,
    GroupError,
    Range,
    group_size,
    request_of_environment,
)
from grpo_guard.adapters.atropos.groups import GroupGuard
from grpo_guard.core.jsonl import InputError, parse_object
from grpo_guard.guard.policy import AbstainError
from grpo_guard.server.access import check_access
from grpo_guard.server.batches import Batches, Job
from grpo_guard.server.intake import Intake, too_large
from grpo_guard.server.limits import Limits
from grpo_guard.server.replies import RequestError, reply

logger = logging.getLogger("grpo_guard")
SECONDS: Final = 60.0  # time limit for the upstream server's answer
TO_JUDGE: Final = ("/scored_data", "/scored_data_list")
OF_ENVIRONMENTS: Final = {
    "/": "GET",
    "/register-env": "POST",
    "/disconnect-env": "POST",
    "/status": "GET",
    "/status-env": "GET",
    "/info": "GET",
    "/wandb_info": "GET",
}


def create_proxy(
    groups: GroupGuard,
    upstream: str,
    *,
    tokens: Mapping[str, str] | None = None,
    limits: Limits | None = None,
) -> Starlette:
    """Create the proxy's web application.

    Args:
        groups: Judges and repairs the groups; set ``vocabulary`` and ``longest`` if other nodes
            post them.
        upstream: Address of Atropos's server.
        tokens: Maps each sender's secret token to the sender's name. If None, anyone may post, and
            senders are not remembered by name.
        limits: Limits on a request; ``completions`` is the maximum number of groups in a list, and
            of rows in a group.
    """
    limits = limits or Limits(body_bytes=64 * 1024 * 1024)
    proxy = _Proxy(replace(groups, own=False), upstream, tokens, limits)
    judged = [Route(path, proxy.scored, methods=["POST"]) for path in TO_JUDGE]
    others = [Route(path, proxy.passed, methods=[how]) for path, how in OF_ENVIRONMENTS.items()]
    return Starlette(routes=[*judged, *others])


Work: TypeAlias = Callable[[bytes, str | None, threading.Event], tuple[int, bytes]]
"""Computes a response's status and body from the request's body, its sender, and an event that is
set once the request has run out of time."""


class _Proxy:
    """The request handlers of `create_proxy`."""

    def __init__(
        self, groups: GroupGuard, upstream: str, tokens: Mapping[str, str] | None, limits: Limits
    ) -> None:
        self.groups, self.upstream, self.tokens, self.limits = groups, upstream, tokens, limits
        # One group at a time: verifiers need not be thread-safe, and the order of arrival is kept.
        self.intake = Intake(limits)
        self.batches = Batches(groups.guard.verifier, replace(limits, running=1))

    async def scored(self, request: Request) -> Response:
        """Judge and repair the rows that an environment posts, then forward them."""
        path, zipped = request.url.path, "gzip" in request.headers.get("content-encoding", "")

        def work(body: bytes, node: str | None, late: threading.Event) -> tuple[int, bytes]:
            plain = _unzipped(body, self.limits) if zipped else body
            found = _groups_in(plain, path.endswith("list"), self.limits, self.groups.temperatures)
            settled = [self.groups.settle(group, node=node)[0] for group in found]
            if late.is_set():
                return 503, b""
            data = settled if path.endswith("list") else settled[0]
            return _asked(self.upstream + path, "POST", data)

        return await self._answered(request, work)

    async def passed(self, request: Request) -> Response:
        """Forward an environment's other requests, reduced to the fields they need."""

        def work(body: bytes, node: str | None, late: threading.Event) -> tuple[int, bytes]:
            path = request.url.path
            data = request_of_environment(path, _object(body, self.limits)) if body else None
            return _asked(self.upstream + path, request.method, data)

        return await self._answered(request, work)

    async def _answered(self, request: Request, work: Work) -> Response:
        # After a 503 the sender retries, so a late result must not be forwarded as well.
        late, seconds = threading.Event(), self.limits.seconds
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            node = _sender(request.headers, self.tokens)
            async with self.intake.body(request, deadline) as sender:
                body = sender.body
                # The guard settles groups and calls the verifier itself.
                job: Job[tuple[int, bytes]] = Job(
                    admit=lambda: None, settle=lambda *_: work(body, node, late),
                    shares_calls=False, completions=1, bytes=len(body), given_up=late,
                )  # fmt: skip
                status, answer = await self.batches.answer(job, deadline)
        except RequestError as error:
            return reply({"detail": str(error)}, error.status)
        except TimeoutError:
            late.set()
            return reply({"detail": f"no answer within {seconds:g} s"}, 503)
        except GroupError as error:
            return reply({"detail": str(error)}, 422)
        except AbstainError as error:
            logger.error("nothing was passed on: %s", error)
            return reply({"detail": "the guard could not judge"}, 503)
        return Response(answer, status, media_type="application/json")


def _sender(headers: Mapping[str, str], tokens: Mapping[str, str] | None) -> str | None:
    """Look up the sender's name by its token. Raises RequestError 401 or 403 if access is
    refused."""
    if tokens is None:
        check_access(headers, None)
        return None
    refused: RequestError | None = None
    known: str | None = None
    for token, name in tokens.items():  # check all of them, so that timing reveals nothing
        try:
            check_access(headers, token)
            known = name
        except RequestError as error:
            refused = error
    if known is None:
        raise refused or RequestError(401, "expected Authorization: Bearer TOKEN")
    return known


def _groups_in(body: bytes, several: bool, limits: Limits, temperatures: Range) -> list[Any]:
    """Parse a request body into groups: a single group, or a list of groups if ``several``. Raises
    RequestError 422 or 413, or GroupError. All groups are checked before any is judged: if a list
    with an invalid group is sent again, the ledger must not count the groups before it twice."""
    # Parsed as an object: that parser limits depth and refuses values that JSON cannot represent.
    given = _object(b'{"groups":' + body + b"}", limits)["groups"]
    if isinstance(given, list) is not several or given == []:
        wanted = "a list of groups" if several else "a group"
        raise RequestError(422, f"(body): expected {wanted}, got {type(given).__name__}")
    found = given if several else [given]
    if len(found) > limits.completions:
        raise RequestError(413, f"expected at most {limits.completions} groups, got {len(found)}")
    for group in found:
        if (size := group_size(group, temperatures)) > limits.completions:
            raise RequestError(413, f"expected at most {limits.completions} rows, got {size}")
    return found


def _object(body: bytes, limits: Limits) -> dict[str, Any]:
    try:
        return parse_object(body, limits.body_bytes + 16)
    except InputError as error:
        raise RequestError(422, f"(body): {error}") from None


def _unzipped(body: bytes, limits: Limits) -> bytes:
    """Decompress a body up to the size limit: a few bytes of gzip can expand to gigabytes."""
    reader = zlib.decompressobj(wbits=31)
    try:
        plain = reader.decompress(body, limits.body_bytes + 1)
    except zlib.error:
        raise RequestError(422, "(body): expected gzip, got other bytes") from None
    if len(plain) > limits.body_bytes or reader.unconsumed_tail:
        raise too_large(limits)
    return plain


def _asked(url: str, method: str, data: Any) -> tuple[int, bytes]:
    """Send a request to the upstream server, and return the status and body of its response. Raises
    RequestError 502 if the server cannot be reached."""
    body = data if isinstance(data, bytes | None) else json.dumps(data).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        raise RequestError(502, f"{url}: {error}") from None


def main(
    guard: Annotated[Path, typer.Option(help="The guard, as YAML.")],
    tokenizer: Annotated[str, typer.Option(help="The policy's: a folder or model id.")],
    upstream: Annotated[str, typer.Option(help="Atropos's server.")] = "http://127.0.0.1:8000",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8100,
    longest: Annotated[int | None, typer.Option(min=1, help="Most tokens per sequence.")] = None,
    temperatures: Annotated[
        tuple[float, float], typer.Option(help="Lowest and highest sampling temperature.")
    ] = TEMPERATURES,
    trust_prompts: Annotated[
        bool, typer.Option(help="Trust the environments' prompts, because they are yours.")
    ] = False,
    senders: Annotated[
        Path | None, typer.Option(help="YAML of sender names and tokens; default: anyone may post.")
    ] = None,
) -> None:
    """Guard the groups that environments post to an Atropos server."""
    from transformers import AutoTokenizer

    from grpo_guard.config import GuardConfig
    from grpo_guard.server.run import listen

    own = AutoTokenizer.from_pretrained(tokenizer)
    groups = GroupGuard(
        GuardConfig.from_yaml(guard).build(),
        own,
        vocabulary=len(own),
        longest=longest,
        trusts_prompts=trust_prompts,
        temperatures=temperatures,
    )
    if senders is None:
        logger.warning("no --senders: anyone who can reach %s may post", host)
        tokens = None
    else:
        tokens = {
            str(token): str(name) for name, token in yaml.safe_load(senders.read_text()).items()
        }
    if not listen(create_proxy(groups, upstream.rstrip("/"), tokens=tokens), host, port):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
