"""The aggregator over HTTP: JSON for scripts, metrics for Prometheus. Behind a login, if there is one."""

import asyncio
import hmac
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import cast

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ops.aggregator.metrics import exposition
from ops.aggregator.watch import Watch, cancelled

REALM = {"WWW-Authenticate": 'Basic realm="promptfleet"'}


def application(watch: Watch, login: str | None) -> web.Application:
    """The server, which also runs the loop.

    Args:
        watch: Not yet running.
        login: `user:password`, or None for everybody who reaches the port.
    """
    app = web.Application(middlewares=[_asking_for(login)] if login else [])
    routes = _Routes(watch)
    app.router.add_get("/api/fleet", routes.fleet)
    app.router.add_get("/api/runs/{run}", routes.run)
    app.router.add_get("/metrics", routes.metrics)
    app.router.add_get("/healthz", routes.health)

    async def running(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(watch.watch())
        yield
        await cancelled(task)

    app.cleanup_ctx.append(running)
    return app


class _Routes:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    async def fleet(self, _: web.Request) -> web.Response:
        """Everything."""
        return self._answered(self._watch.document)

    async def run(self, request: web.Request) -> web.Response:
        """One run: what `progress.json` in the store holds, but newer."""
        document = self._watch.document
        if document is None:
            return self._answered(None)
        runs = cast("list[dict[str, object]]", document["runs"])
        found = next((one for one in runs if one["run"] == request.match_info["run"]), None)
        if found is None:
            return _json({"error": "Redis knows no such run; `producer runs` lists those of the store"}, status=404)
        return self._answered(found)

    async def metrics(self, _: web.Request) -> web.Response:
        """For Prometheus; without values while Redis is away, so that nothing stale looks alive."""
        body = exposition(lambda: None if self._watch.problem else self._watch.document)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(self, _: web.Request) -> web.Response:
        """Whether it reads Redis."""
        problem = self._watch.problem or ("" if self._watch.document else "Redis was not read yet")
        return _json({"ok": not problem, "problem": problem or None}, status=503 if problem else 200)

    def _answered(self, document: dict[str, object] | None) -> web.Response:
        if document is None:
            return _json({"error": self._watch.problem or "Redis was not read yet; ask again"}, status=503)
        return _json({**document, "problem": self._watch.problem or None})


def _json(document: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json", status=status)


def _asking_for(login: str) -> Middleware:
    @web.middleware
    async def ask(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not _knows(request.headers.get("Authorization", ""), login):
            return web.Response(status=401, headers=REALM, text="a login is needed: FLEET_PAGE_LOGIN of the aggregator\n")
        return await handler(request)

    return ask


def _knows(header: str, login: str) -> bool:
    scheme, _, told = header.partition(" ")
    try:
        return scheme.lower() == "basic" and hmac.compare_digest(b64decode(told, validate=True), login.encode())
    except ValueError:
        return False
