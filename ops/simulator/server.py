"""The simulated engine over HTTP: SGLang's routes, and `/simulator/…` for tests."""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from ops.simulator import gauges, wire
from ops.simulator.engine import Ask, SimulatedEngine
from ops.simulator.faults import FaultPlan, Rule
from ops.simulator.requests import Refused, native_ask, openai_ask

Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Shape = Callable[[Ask, wire.Finished], Json]

STALL_S = 86_400.0
STREAM_STEP_S = 0.05
NATIVE = "/generate"
EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8"}
END_OF_STREAM = b"data: [DONE]\n\n"
MAX_BODY_BYTES = 64 << 20
_ENCODER = msgspec.json.Encoder()


def answer(body: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    return web.Response(body=_ENCODER.encode(body), status=status, content_type="application/json", headers=headers)


def named(ask: Ask) -> str:
    """The model name of a request, which the real server repeats unchecked."""
    return str(ask.body.get("model", "default"))


class SimulatedServer:
    """Routes of one simulated engine."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self.engine = engine

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_told_as_json])
        get, post = app.router.add_get, app.router.add_post
        for path, handler in self._reads().items():
            get(path, handler)
        post(NATIVE, self._generate)
        app.router.add_put(NATIVE, self._generate)
        post("/v1/chat/completions", self._chat)
        post("/v1/completions", self._completions)
        post("/abort_request", self._abort)
        app.router.add_route("*", "/flush_cache", self._flush)
        get("/v1/models/{name}", self._model)
        post("/simulator/faults", self._set_faults)
        app.router.add_delete("/simulator/faults", self._clear_faults)
        return app

    def _reads(self) -> dict[str, Handler]:
        engine, options = self.engine, self.engine.options

        def told(make: Callable[[], object]) -> Handler:
            async def handler(_: web.Request) -> web.Response:
                return answer(make())

            return handler

        async def metrics(_: web.Request) -> web.Response:
            return web.Response(text=gauges.metrics(engine), content_type="text/plain")

        reads: dict[str, Handler] = {
            "/health": self._health,
            "/health_generate": self._health,
            "/server_info": told(lambda: gauges.server_info(engine)),
            "/get_server_info": told(lambda: gauges.server_info(engine)),
            "/model_info": told(lambda: gauges.model_info(options)),
            "/get_model_info": told(lambda: gauges.model_info(options)),
            "/v1/models": told(lambda: {"object": "list", "data": [self._card()]}),
            "/v1/loads": told(lambda: gauges.loads(engine)),
            "/metrics": metrics,
            "/simulator/requests": self._requests,
            "/simulator/state": told(self._state),
            "/simulator/faults": told(lambda: engine.plan),
        }
        if options.version == wire.OLD:
            load = {
                "dp_rank": None,
                "num_reqs": 0,
                "num_waiting_reqs": 0,
                "num_tokens": 0,
                "num_pending_tokens": 0,
                "ts_tic": 0.0,
            }
            reads["/get_load"] = told(lambda: [load | {"num_reqs": engine.batch.running + engine.batch.queued}])
        return reads

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        def ask(body: Json) -> Ask:
            return native_ask(body, self.engine.options.version, self.engine.options.context_length)

        return await self._serve(request, ask, lambda _, done: wire.native(done, self.engine.options.version))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        def ask(body: Json) -> Ask:
            return openai_ask(body, self.engine.options.version, self.engine.options.context_length, chat=True)

        options = self.engine.options
        return await self._serve(request, ask, lambda ask, done: wire.chat(done, options.version, named(ask)))

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        def ask(body: Json) -> Ask:
            return openai_ask(body, self.engine.options.version, self.engine.options.context_length, chat=False)

        options = self.engine.options
        return await self._serve(request, ask, lambda ask, done: wire.completion(done, options.version, named(ask)))

    async def _serve(self, request: web.Request, parse: Callable[[Json], Ask], shape: Shape) -> web.StreamResponse:
        engine = self.engine
        if engine.server_fault("slow_start"):
            return web.Response(status=503)
        streamed = False
        try:
            if request.path != NATIVE and request.content_type != "application/json":
                raise Refused(400, wire.unsupported_media_type())
            body = await _json_body(request)
            streamed = bool(body.get("stream"))
            ask = parse(body)
            if ask.rid in engine.asks:
                raise Refused(400, wire.native_error(f"Duplicate request ID detected: {ask.rid}"))
            if engine.full():
                raise Refused(503, wire.openai_error("The request queue is full.", 503, "503"))
        except Refused as refused:
            if isinstance(refused.body, str):
                return web.Response(text=refused.body, status=refused.status)
            if request.path == NATIVE and streamed and isinstance(refused.body.get("error"), dict):
                message = refused.body["error"]["message"]
                return await _stream_of(request, wire.native_error_event(message, engine.options.version))
            return answer(refused.body, refused.status)
        engine.admit(ask)
        try:
            if ask.fault is not None:
                early = await self._strike(request, ask, ask.fault)
                if early is not None:
                    engine.close(ask, ask.fault.kind, 0)
                    return early
            if streamed:
                return await self._stream(request, ask, shape)
            done = await engine.generate(ask)
            return _spoilt(ask, shape(ask, done), engine.options.version)
        except asyncio.CancelledError:
            engine.forget(ask)
            raise

    async def _strike(self, request: web.Request, ask: Ask, fault: Rule) -> web.StreamResponse | None:
        """What a fault does instead of an answer, or None if it spoils the answer later."""
        if fault.seconds:
            await asyncio.sleep(fault.seconds)
        if fault.kind == "crash":
            sys.stderr.write("SIMULATED crash\n")
            os._exit(137)
        if fault.kind == "stall":
            await asyncio.sleep(STALL_S)
        if fault.kind == "disconnect" and request.transport is not None:
            request.transport.abort()
            return web.Response()
        if fault.kind == "out_of_memory":
            text = "Out of memory even after retracting all other requests in the decode batch."
            return answer(wire.openai_error(text, 500, "500"), 500)
        if fault.kind == "status":
            headers = {"retry-after": f"{fault.retry_after:g}"} if fault.retry_after is not None else None
            if fault.body is not None:
                return web.Response(text=fault.body, status=fault.code, headers=headers)
            return answer(wire.openai_error(f"SIMULATED {fault.code}", fault.code, str(fault.code)), fault.code, headers)
        if fault.kind == "error_body":
            return answer(wire.openai_error("Internal server error: SIMULATED", 500, "InternalServerError"))
        if fault.kind == "invalid_shape":
            return answer({"simulated": True, "result": "not an answer"})
        return None

    async def _stream(self, request: web.Request, ask: Ask, shape: Shape) -> web.StreamResponse:
        engine = self.engine
        response = web.StreamResponse(headers=EVENT_STREAM)
        await response.prepare(request)
        generating = asyncio.create_task(engine.generate(ask))
        sent = 0
        try:
            while not generating.done():
                await asyncio.wait([generating], timeout=STREAM_STEP_S)
                count = engine.batch.decoded_of(ask.rid)
                if not generating.done() and count > sent:
                    for event in self._events(ask, sent, engine.decoded(ask, count, {"type": None}, time.time())):
                        await _send(response, event)
                    sent = count
            done = await generating
        except asyncio.CancelledError:
            generating.cancel()
            raise
        events = self._events(ask, sent, done) if ask.route != "native" else []
        for event in events + self._last(ask, done, shape(ask, done)):
            await _send(response, event)
        await response.write(END_OF_STREAM)
        return response

    def _events(self, ask: Ask, sent: int, done: wire.Finished) -> list[Json]:
        """What is new since `sent` tokens; `/generate` repeats all."""
        count, model = len(done.output_ids), named(ask)
        if ask.route == "native":
            return [wire.native_chunk(done, self.engine.options.version)]
        before = self.engine.split(ask, sent)[1]
        content = done.text[len("".join(before)) :]
        if ask.route == "completion":
            return [wire.completion_chunk(ask.rid, model, content, None)] if content else []
        events = [] if sent else [wire.chat_chunk(ask.rid, model, _delta(role="assistant", content=""), None)]
        if thinking := "".join(self.engine.split(ask, count)[0][sent:]):
            events.append(wire.chat_chunk(ask.rid, model, _delta(reasoning_content=thinking), None))
        if content:
            events.append(wire.chat_chunk(ask.rid, model, _delta(content=content), None))
        return events

    def _last(self, ask: Ask, done: wire.Finished, whole: Json) -> list[Json]:
        if ask.route == "native":
            return [whole]
        model = named(ask)
        if ask.route == "completion":
            events = [wire.completion_chunk(ask.rid, model, "", done.reason)]
        else:
            events = [wire.chat_chunk(ask.rid, model, _delta(), done.reason)]
        if (ask.body.get("stream_options") or {}).get("include_usage"):
            events.append({**events[0], "choices": [], "usage": whole["usage"]})
        return events

    async def _health(self, _: web.Request) -> web.Response:
        starting = self.engine.server_fault("slow_start")
        return web.Response(status=503 if starting else 200)

    async def _abort(self, request: web.Request) -> web.Response:
        body = await _json_body(request)
        self.engine.abort(str(body.get("rid", "")), bool(body.get("abort_all")))
        return web.Response()

    async def _flush(self, _: web.Request) -> web.Response:
        if self.engine.asks:
            return web.Response(text="Flush cache failed.\n", status=400)
        return web.Response(text="Cache flushed.\nPlease check backend logs for more details.\n")

    def _card(self) -> Json:
        options = self.engine.options
        return {
            "id": options.model,
            "object": "model",
            "created": int(self.engine.started_at),
            "owned_by": "sglang",
            "root": options.model,
            "parent": None,
            "max_model_len": options.context_length,
        }

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name == self.engine.options.model:
            return answer(self._card())
        error = {"message": f"The model '{name}' does not exist", "type": "invalid_request_error", "param": "model"}
        return answer({"error": {**error, "code": "model_not_found"}}, 404)

    async def _requests(self, request: web.Request) -> web.Response:
        since = int(request.query.get("since", "0"))
        seen = self.engine.requests
        if "summary" in request.query:
            repeated = {digest: count for digest, count in self.engine.tries.items() if count > 1}
            told = {"requests": len(seen), "prompts": len(self.engine.tries), "repeated": repeated}
            return answer(told | {"outcomes": _outcomes(self.engine)})
        return answer({"requests": list(seen)[since:], "next": len(seen), "simulated": True})

    def _state(self) -> Json:
        batch = self.engine.batch
        return {
            "simulated": True,
            "at_s": self.engine.at_s,
            "running": batch.running,
            "queued": batch.queued,
            "finished": self.engine.finished,
            "busy_slot_seconds": batch.busy_slot_seconds,
            "most_running": batch.most_running,
            "completion_tokens": self.engine.completion_tokens_total,
        }

    async def _set_faults(self, request: web.Request) -> web.Response:
        try:
            self.engine.follow(msgspec.json.decode(await request.read(), type=FaultPlan))
        except msgspec.MsgspecError as error:
            return answer({"error": str(error)}, 400)
        return answer(self.engine.plan)

    async def _clear_faults(self, _: web.Request) -> web.Response:
        self.engine.follow(FaultPlan())
        return answer(self.engine.plan)


def _delta(**fields: str) -> Json:
    return {"reasoning_content": None, **fields}


async def _stream_of(request: web.Request, *events: Json) -> web.StreamResponse:
    response = web.StreamResponse(headers=EVENT_STREAM)
    await response.prepare(request)
    for event in events:
        await _send(response, event)
    await response.write(END_OF_STREAM)
    return response


@web.middleware
async def _told_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        return answer({"detail": error.reason}, error.status)


def _outcomes(engine: SimulatedEngine) -> dict[str, int]:
    counts: dict[str, int] = {}
    for seen in engine.requests:
        counts[seen.outcome] = counts.get(seen.outcome, 0) + 1
    return counts


async def _json_body(request: web.Request) -> Json:
    try:
        body = msgspec.json.decode(await request.read())
    except msgspec.MsgspecError as error:
        text = f"1 validation error:\n  {{'type': 'json_invalid', 'msg': 'JSON decode error', 'ctx': {{'error': '{error}'}}}}"
        raise Refused(400, wire.openai_error(text, kind="Bad Request")) from error
    if not isinstance(body, dict):
        raise Refused(400, wire.openai_error("1 validation error:\n  {'type': 'model_attributes_type'}", kind="Bad Request"))
    return body


def _spoilt(ask: Ask, body: Json, version: str) -> web.Response:
    kind = ask.fault.kind if ask.fault else None
    native = "meta_info" in body
    if kind in {"empty", "null_content"}:
        if native:
            body["text"] = ""
        elif "message" in body["choices"][0]:
            body["choices"][0]["message"]["content"] = None if kind == "null_content" or version == wire.OLD else ""
            body["choices"][0]["message"]["reasoning_content"] = None
        else:
            body["choices"][0]["text"] = ""
    if kind in {"abort", "nan"}:
        reason = wire.aborted("Aborted") if kind == "abort" else {"type": "stop", "matched": "NaN happened"}
        if native:
            body["meta_info"]["finish_reason"] = reason
        else:
            body["choices"][0] |= {"finish_reason": reason["type"], "matched_stop": reason.get("matched")}
    if kind == "cut_in_thinking" and not native:
        message = body["choices"][0].get("message", {})
        message |= {
            "content": None if version == wire.OLD else "",
            "reasoning_content": message.get("reasoning_content") or "so",
        }
        body["choices"][0] |= {"finish_reason": "length", "matched_stop": None}
    if kind == "not_json":
        whole = _ENCODER.encode(body)
        return web.Response(body=whole[: len(whole) // 2], content_type="application/json")
    return answer(body)


async def _send(response: web.StreamResponse, event: Json) -> None:
    await response.write(b"data: " + _ENCODER.encode(event) + b"\n\n")
