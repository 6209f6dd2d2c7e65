"""An HTTP proxy in front of an S3 server that answers, loses, holds, cuts and spoils what a rule names.

It knows requests, where `ops.drill.proxy` knows bytes. Host and path pass unchanged, so that signatures stay valid.
"""

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import aiohttp
from aiohttp import web
from yarl import URL

from ops.drill.loop_thread import LoopThread

Action = Literal["answer", "lose_answer", "hold", "cut", "spoil"]
_HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "expect"}


@dataclass
class Rule:
    """What happens to requests of these methods whose key holds `part`.

    `answer`: `status` and `code` of S3 instead of the server's answer. `lose_answer`: the server does it, then the connection
    is reset. `hold`: nothing until the rule is `release`d, then it passes. `cut`: half the body, then a reset. `spoil`: the
    body with its middle changed, headers as they were. Of every `every` requests one is met, of one object `times` at most.
    `bare`: without the server's checksum.
    """

    action: Action
    methods: tuple[str, ...] = ("GET", "HEAD", "PUT", "DELETE")
    part: str = ""
    status: int = 503
    code: str = "SlowDown"
    every: int = 1
    times: int | None = None
    bare: bool = False
    seen: int = 0
    passed: int = 0
    met: Counter[str] = field(default_factory=Counter)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def meets(self, request: web.Request) -> bool:
        """Whether this request is one; counts it."""
        if request.method not in self.methods or self.part not in request.raw_path:
            return False
        self.seen += 1
        key = request.path.partition("/runs/")[2]
        if self.seen % self.every or (self.times is not None and self.met[key] >= self.times):
            return False
        self.met[key] += 1
        return True


class StoreProxy:
    """Runs in a thread of its own. `rules` are asked in turn; the first that meets a request has it."""

    def __init__(self, endpoint: str) -> None:
        self._target = endpoint
        self._thread = LoopThread("store proxy")
        self.rules: list[Rule] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        self._thread.start()
        self._thread.call(self._listen())
        return self

    def rule(self, action: Action, **fields: Any) -> Rule:
        """Add a rule."""
        rule = Rule(action, **fields)
        self.rules = [*self.rules, rule]
        return rule

    def heal(self) -> None:
        """No rule any more. What is held stays so: its request is lost."""
        self.rules = []

    def release(self, rule: Rule) -> None:
        """Let pass what a rule holds, and meet nothing more."""
        self.rules = [other for other in self.rules if other is not rule]
        self._thread.loop.call_soon_threadsafe(rule.released.set)

    def stop(self) -> None:
        self._thread.call(self._close())
        self._thread.stop()

    async def _listen(self) -> None:
        self._client = aiohttp.ClientSession(auto_decompress=False, connector=aiohttp.TCPConnector(limit=0))
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(application, auto_decompress=False, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _close(self) -> None:
        await self._runner.cleanup()
        await self._client.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        rule = next((rule for rule in self.rules if rule.meets(request)), None)
        if rule is None:
            return await self._forwarded(request, body)
        if rule.action == "answer":
            error = f"<Error><Code>{rule.code}</Code><Message>said by the proxy</Message></Error>"
            return web.Response(status=rule.status, body=error.encode(), content_type="application/xml")
        if rule.action == "hold":
            await rule.released.wait()
            answer = await self._forwarded(request, body)
            rule.passed += 1
            return answer
        if rule.action == "lose_answer":
            await self._forwarded(request, body)
            return _reset(request)
        if rule.action == "cut":
            return await self._changed(request, body, rule, lambda found: found[: len(found) // 2])
        return await self._changed(request, body, rule, _spoiled)

    async def _forwarded(self, request: web.Request, body: bytes) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        url = URL(self._target + request.raw_path, encoded=True)
        async with self._client.request(request.method, url, headers=headers, data=body, allow_redirects=False) as answer:
            found = await answer.read()
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
            return web.Response(status=answer.status, body=found or None, headers=kept)

    async def _changed(
        self, request: web.Request, body: bytes, rule: Rule, change: Callable[[bytes], bytes]
    ) -> web.StreamResponse:
        answer = await self._forwarded(request, body)
        whole = answer.body if isinstance(answer.body, bytes) else b""
        dropped = "x-amz-checksum-" if rule.bare else "\0"
        headers = {name: value for name, value in answer.headers.items() if not name.lower().startswith(dropped)}
        begun = web.StreamResponse(status=answer.status, headers=headers)
        await begun.prepare(request)
        changed = change(whole)
        await begun.write(changed)
        if len(changed) < len(whole):
            return _reset(request)
        return begun


def _spoiled(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 0xFF]) + body[middle + 1 :] if body else body


def _reset(request: web.Request) -> web.StreamResponse:
    transport = request.transport
    if transport is not None:
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    return web.Response()
