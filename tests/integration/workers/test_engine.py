"""The engine's client against a server on the loopback that misbehaves on demand."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from ops.quickstart.processes import free_port
from workers.answers import InvalidAnswer
from workers.contract.errors import EngineOverloaded, EngineUnavailable, PromptRejected
from workers.contract.schema import Prompt, Sampling
from workers.engine import Engine, EngineInfo, flags_digest, new_request_id
from workers.health import NOT_ASKED, EngineHealth

pytestmark = pytest.mark.integration

PROMPT = Prompt(id="p", row=0, text="hello")
SAMPLING = Sampling(max_tokens=8)
ANSWER = {
    "text": " world",
    "output_ids": [1, 2],
    "meta_info": {"finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 1, "completion_tokens": 2},
}

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(routes: dict[str, Answer], port: int | None = None) -> AsyncIterator[str]:
    app = web.Application()
    for path, answer in routes.items():
        app.router.add_route("*", path, answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port or free_port())
    await site.start()
    try:
        yield site.name
    finally:
        await runner.cleanup()


@asynccontextmanager
async def engine_that(answer: Answer, timeout_s: float = 5.0) -> AsyncIterator[Engine]:
    async with serving({"/generate": answer}) as url, Engine(url, request_timeout_s=timeout_s) as engine:
        yield engine


def always(status: int = 200, *, headers: dict[str, str] | None = None, body: str = "", json: object = None) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        if json is not None:
            return web.json_response(json, status=status, headers=headers)
        return web.Response(status=status, text=body, headers=headers)

    return answer


async def generate(engine: Engine) -> object:
    return await engine.generate(PROMPT, SAMPLING, new_request_id())


async def test_what_is_sent_names_the_budget_and_a_fresh_id() -> None:
    seen: list[dict[str, object]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(await request.json())
        return web.json_response(ANSWER)

    async with engine_that(answer) as engine:
        await generate(engine)
        await generate(engine)
    assert [body["sampling_params"] for body in seen] == [{"max_new_tokens": 8}] * 2
    ids = {str(body["rid"]) for body in seen}
    assert {len(rid) for rid in ids} == {32}
    assert len(ids) == 2


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_refusal_is_the_prompts_fault(status: int) -> None:
    async with engine_that(always(status, json={"error": {"message": "The input (9 tokens) is too long"}})) as engine:
        with pytest.raises(PromptRejected) as caught:
            await generate(engine)
    assert (caught.value.status, caught.value.message) == (status, "The input (9 tokens) is too long")


@pytest.mark.parametrize("status", [204, 302, 401, 403, 404, 405, 500, 502])
async def test_any_other_status_is_the_engines_fault(status: int) -> None:
    async with engine_that(always(status, body="no")) as engine:
        with pytest.raises(EngineUnavailable, match=f"{status}") as caught:
            await generate(engine)
    assert caught.value.kind == "error"


async def test_a_full_queue_is_overload_and_its_wish_is_kept() -> None:
    full = {"object": "error", "message": "The request queue is full.", "type": "503", "code": 503}
    async with engine_that(always(503, json=full, headers={"retry-after": "7"})) as engine:
        with pytest.raises(EngineOverloaded, match=r"is overloaded: The request queue is full\.; lower FLEET_SLOTS") as caught:
            await generate(engine)
    assert caught.value.retry_after_s == 7.0


async def test_a_500_is_the_engines_fault() -> None:
    async with engine_that(always(500, body="Internal Server Error")) as engine:
        with pytest.raises(EngineUnavailable, match="500 Internal Server Error") as caught:
            await generate(engine)
    assert caught.value.kind == "error"


async def test_nobody_listening_is_refused() -> None:
    async with Engine(f"http://127.0.0.1:{free_port()}") as engine:
        with pytest.raises(EngineUnavailable, match="no connection") as caught:
            await generate(engine)
    assert caught.value.kind == "refused"


async def test_a_connection_that_dies_under_a_request_is_lost() -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with engine_that(answer) as engine:
        with pytest.raises(EngineUnavailable, match="connection lost") as caught:
            await generate(engine)
    assert caught.value.kind == "lost"


async def test_half_an_answer_is_lost() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "500"})
        await response.prepare(request)
        await response.write(b'{"text":')
        assert request.transport is not None
        request.transport.abort()
        return response

    async with engine_that(answer) as engine:
        with pytest.raises(EngineUnavailable) as caught:
            await generate(engine)
    assert caught.value.kind == "lost"


async def test_silence_ends_at_the_timeout() -> None:
    async def answer(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async with engine_that(answer, timeout_s=0.3) as engine:
        with pytest.raises(EngineUnavailable, match=r"no answer to /generate within 0\.3 s") as caught:
            await generate(engine)
    assert caught.value.kind == "timeout"


async def test_200_with_an_error_in_it_is_no_answer() -> None:
    async with engine_that(always(json={"object": "error", "message": "boom", "code": 500})) as engine:
        with pytest.raises(InvalidAnswer, match="boom"):
            await generate(engine)


async def test_the_effective_limit_is_read_and_not_the_command_lines() -> None:
    told = {
        "version": "0.5.11",
        "served_model_name": "m",
        "max_running_requests": 64,
        "context_length": None,
        "max_req_input_len": 2042,
        "internal_states": [{"effective_max_running_requests_per_dp": 40}],
        "dp_size": 1,
    }
    async with serving({"/server_info": always(json=told)}) as url, Engine(url) as engine:
        assert await engine.info() == EngineInfo("0.5.11", "m", 40, 2048, flags_digest(told))


async def test_an_engine_serves_when_it_generates_a_token_and_not_before() -> None:
    answers = [always(503), always(json={"error": "starting"}), always(json=ANSWER)]

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (answers.pop(0) if len(answers) > 1 else answers[0])(request)

    async with serving({"/generate": answer, "/health": always(200)}) as url, Engine(url) as engine:
        health = EngineHealth(engine, 60, in_flight=lambda: 0)
        assert not health.serves
        watch = asyncio.create_task(health.watch())
        await asyncio.wait_for(health.serving(), 10)
        assert health.serves
        watch.cancel()


async def test_an_engine_that_never_served_is_told_with_the_cause_of_the_last_try() -> None:
    refusing = "http://127.0.0.1:1"
    async with Engine(refusing) as engine:
        health = EngineHealth(engine, 60, in_flight=lambda: 0)
        watch = asyncio.create_task(health.watch())
        async with asyncio.timeout(5):
            while health.cause == NOT_ASKED:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        watch.cancel()
    assert str(health.cause).startswith(f"engine {refusing}: no connection (")
    async with serving({"/generate": always(404)}) as url, Engine(url) as engine:
        assert str(await engine.probe()).startswith("/generate: 404")


async def test_a_hang_with_health_200_is_seen_by_the_counters() -> None:
    moving = True
    used = iter(range(10**6))

    async def loads(_: web.Request) -> web.Response:
        return web.json_response({"loads": [{"num_running_reqs": 4, "num_used_tokens": next(used) if moving else 7}]})

    routes = {"/generate": always(json=ANSWER), "/v1/loads": loads, "/health": always(200)}
    async with serving(routes) as url, Engine(url) as engine:
        health = EngineHealth(engine, hang_s=0.6, in_flight=lambda: 4)
        watch = asyncio.create_task(health.watch())
        await asyncio.wait_for(health.serving(), 5)
        await asyncio.sleep(1.5)
        assert health.serves  # it moves
        moving = False
        changed = asyncio.Event()
        health._on_change = changed.set
        await asyncio.wait_for(changed.wait(), 5)
        assert health.cause == "no token for 0.6 s with 4 requests in flight"
        watch.cancel()


@pytest.mark.parametrize("status", [400, 404, 413, 422, 429, 500, 503])
async def test_whatever_a_question_about_the_engine_is_answered_with_is_one_error(status: int) -> None:
    routes = {"/server_info": always(status), "/v1/loads": always(status), "/metrics": always(status)}
    async with serving(routes) as url, Engine(url) as engine:
        for question in (engine.info(), engine.progress()):
            with pytest.raises(EngineUnavailable, match=f": {status}"):
                await question


@pytest.mark.parametrize("told", [{"loads": [7]}, {"loads": []}, {"loads": None}, [], "text"])
async def test_loads_of_another_shape_are_one_error(told: object) -> None:
    async with serving({"/v1/loads": always(json=told)}) as url, Engine(url) as engine:
        with pytest.raises(EngineUnavailable, match="is not SGLang's"):
            await engine.progress()


async def test_a_port_that_speaks_no_http_is_an_engine_that_is_not_there() -> None:
    async def rubbish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-ERR unknown command\r\n" * 3)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(rubbish, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Engine(f"http://127.0.0.1:{port}") as engine:
            assert await engine.probe() is not None
            for question in (engine.info(), engine.progress(), generate(engine)):
                with pytest.raises(EngineUnavailable):
                    await question


LOST = EngineUnavailable("http://127.0.0.1:1", "connection lost", kind="lost")


@asynccontextmanager
async def watched(routes: dict[str, Answer]) -> AsyncIterator[EngineHealth]:
    async with serving(routes) as url, Engine(url) as engine:
        health = EngineHealth(engine, hang_s=60, in_flight=lambda: 4)
        watch = asyncio.create_task(health.watch())
        await asyncio.wait_for(health.serving(), 5)
        try:
            yield health
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)


async def test_an_engine_full_of_work_that_dropped_one_connection_is_not_dead() -> None:
    full = False
    used = iter(range(10**6))

    async def generates(request: web.Request) -> web.StreamResponse:
        if full:
            await asyncio.sleep(30)  # the probe waits in its queue
        return web.json_response(ANSWER)

    async def loads(_: web.Request) -> web.Response:
        return web.json_response({"loads": [{"num_running_reqs": 4, "num_used_tokens": next(used)}]})

    async with watched({"/generate": generates, "/v1/loads": loads}) as health:
        full = True
        verdicts = await asyncio.wait_for(asyncio.gather(*(health.found_dead(LOST) for _ in range(50))), 8)
        assert not any(verdicts)
        assert health.serves


async def test_an_engine_that_answers_with_errors_is_sick_whatever_its_counters_say() -> None:
    broken = False
    used = iter(range(10**6))

    async def generates(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "CUDA error"}}, status=500) if broken else web.json_response(ANSWER)

    async def loads(_: web.Request) -> web.Response:
        return web.json_response({"loads": [{"num_running_reqs": 4, "num_used_tokens": next(used)}]})

    async with watched({"/generate": generates, "/v1/loads": loads}) as health:
        broken = True
        assert await asyncio.wait_for(health.found_dead(EngineUnavailable("u", "500 CUDA error")), 8)
        assert health.cause == "500 CUDA error"
        assert await health.found_dead(LOST)  # told at once while it is sick
        broken = False
        await asyncio.wait_for(health.serving(), 5)
        assert not await asyncio.wait_for(health.found_dead(LOST), 8)


async def test_an_engine_that_is_gone_is_dead_at_once() -> None:
    async with Engine("http://127.0.0.1:1") as nobody:
        health = EngineHealth(nobody, hang_s=60, in_flight=lambda: 4)
        health._set(None)
        watch = asyncio.create_task(health._until_it_is_sick())
        found = asyncio.create_task(health.found_dead(LOST))
        assert await asyncio.wait_for(watch, 5) == "connection lost"
        health._set("connection lost")
        assert await asyncio.wait_for(found, 5)
