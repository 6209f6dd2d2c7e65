"""Client of one SGLang server: the only place that knows its API and how 0.5.11 and 0.5.23 differ.

Knows requests, errors and gauges; how an answer is read is in workers/answers.py. Does not judge (workers/quality.py) and does
not try again (workers/retry.py). Recorded answers of both versions are kept in tests/golden/sglang.
"""

import hashlib
import os
import re
from types import TracebackType
from typing import Self

import aiohttp
import httpx
import msgspec
from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from httpx_aiohttp import AiohttpTransport

from workers.answers import Generated, InvalidAnswer, error_message, read_answer
from workers.contract.errors import EngineOverloaded, EngineUnavailable, PromptRejected
from workers.contract.request import request_of
from workers.contract.schema import Prompt, Sampling
from workers.gauges import EngineGauges, read_gauges

KEEPALIVE_S = 4.0
"""Below the server's 5 s (`SGLANG_TIMEOUT_KEEP_ALIVE`): an idle connection is never reused while the server closes it."""
PROBE_TIMEOUT_S = 5.0
PROMPTS_FAULT = frozenset({400, 413, 422})
"""What SGLang answers to a prompt that it will never take. Any other status (401, 404, 5xx, …) is the server's doing."""
CONNECT_TIMEOUT_S = 10.0


class EngineInfo(msgspec.Struct, frozen=True):
    """What a server says of itself. `running_limit` is the effective one, not the command line's."""

    version: str
    model: str
    running_limit: int | None
    context_length: int | None
    flags_digest: str = ""


class _InternalState(msgspec.Struct):
    effective_max_running_requests_per_dp: int | None = None


class _ServerInfo(msgspec.Struct):
    version: str = "unknown"
    served_model_name: str | None = None
    model_path: str | None = None
    context_length: int | None = None
    max_req_input_len: int | None = None
    dp_size: int = 1
    internal_states: list[_InternalState] = []


_INFO = msgspec.json.Decoder(_ServerInfo)
_NOT_FLAGS = re.compile(
    r"host|.*_?ports?|.*_key|.*_key_b|base_gpu_id|random_seed|status|startup_time|internal_states|max_total_num_tokens"
    r"|dist_init_addr|log_.*|version|simulated"
)
"""Of what /server_info tells: addresses, secrets, measurements. The rest is how the server was told to work."""
_DECODED = re.compile(rb"^sglang:(?:realtime|generation)_tokens_total\{[^}]*\} (\S+)$", re.MULTILINE)


def flags_digest(server_info: dict[str, object]) -> str:
    """Twelve hex digits, the same for servers of one version that were told to work alike."""
    flags = {name: value for name, value in server_info.items() if not _NOT_FLAGS.fullmatch(name)}
    return hashlib.sha256(msgspec.json.encode(flags, order="deterministic")).hexdigest()[:12]


def new_request_id() -> str:
    """A fresh id for one try: all of one length, because the engine aborts by prefix and remembers refused ids."""
    return os.urandom(16).hex()


class Engine:
    """One SGLang server. One instance per process, used from one event loop."""

    def __init__(self, url: str, api_key: str | None = None, request_timeout_s: float = 3600.0) -> None:
        self.url = url.rstrip("/")
        self._request_timeout_s = request_timeout_s
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._urls: dict[str, httpx.URL] = {}
        self._http: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        session = ClientSession(
            connector=TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=None),  # aiohttp's own default ends every answer after five minutes
        )
        self._http = httpx.AsyncClient(
            transport=AiohttpTransport(client=session),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def generate(self, prompt: Prompt, sampling: Sampling, request_id: str, model: str | None = None) -> Generated:
        """Generate one completion.

        Args:
            prompt: Messages go to `/v1/chat/completions`, text and token ids to `/generate`.
            sampling: Complete, with `max_tokens`.
            request_id: From `new_request_id`, never used before.
            model: That the run names.

        Raises:
            PromptRejected: 4xx; the same prompt will fail again.
            EngineUnavailable: No connection, 5xx, connection lost, or no answer in time.
            EngineOverloaded: 503 or 429.
            InvalidAnswer: 200, but not an answer.
        Source: SGLang 0.5.11 and 0.5.23, `tests/golden/sglang`.
        """
        path, body = request_of(prompt, sampling, model)
        body = body[:-1] + b',"rid":"' + request_id.encode() + b'"}'
        response = await self._send("POST", path, body, self._request_timeout_s)
        self._raise_for_status(response, str(prompt.id))
        return read_answer(path, response.content)

    async def info(self) -> EngineInfo:
        """Version, model and effective limits.

        Raises:
            EngineUnavailable: It does not answer.
        """
        response = await self._read("/server_info")
        try:
            info = _INFO.decode(response)
        except msgspec.MsgspecError as error:
            raise EngineUnavailable(self.url, f"/server_info is not SGLang's: {error}") from error
        limit = info.internal_states[0].effective_max_running_requests_per_dp if info.internal_states else None
        return EngineInfo(
            version=info.version,
            model=info.served_model_name or info.model_path or "unknown",
            running_limit=limit * info.dp_size if limit else None,
            context_length=info.context_length or (info.max_req_input_len + 6 if info.max_req_input_len else None),
            flags_digest=flags_digest(msgspec.json.decode(response)),
        )

    async def progress(self) -> tuple[object, ...]:
        """Something that changes whenever the engine decodes; two equal readings far apart with work in flight mean a hang.

        Raises:
            EngineUnavailable: It does not answer, which is a sign too.
        """
        loads, metrics = await self._pages()
        try:
            first = msgspec.json.decode(loads)["loads"][0]
            moving = tuple(first.get(name) for name in ("num_running_reqs", "num_waiting_reqs", "num_used_tokens"))
        except (msgspec.MsgspecError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineUnavailable(self.url, f"/v1/loads is not SGLang's: {error}") from error
        return (*moving, tuple(_DECODED.findall(metrics)))

    async def gauges(self) -> EngineGauges:
        """One reading of what it does; disturbs it no more than two GET requests do.

        Raises:
            EngineUnavailable: It does not answer, or not as SGLang does.
        """
        loads, metrics = await self._pages()
        try:
            return read_gauges(loads, metrics.decode())
        except ValueError as error:
            raise EngineUnavailable(self.url, str(error)) from error

    async def probe(self) -> str | None:
        """None if it generates a token right now, else why not; asked only of an engine that is starting or sick."""
        body = b'{"text":"Hello","sampling_params":{"max_new_tokens":1},"rid":"' + new_request_id().encode() + b'"}'
        try:
            response = await self._send("POST", "/generate", body, PROBE_TIMEOUT_S * 2)
            if response.status_code != httpx.codes.OK:
                return f"/generate: {response.status_code} {error_message(response.content)}"
            read_answer("/generate", response.content)
        except EngineUnavailable as error:
            return error.cause
        except InvalidAnswer as error:
            return f"/generate: {error}"
        return None

    async def abort(self, request_ids: list[str]) -> None:
        """Ask the engine to forget requests; it answers at once and says nothing of what it found."""
        for request_id in request_ids:
            try:
                await self._send("POST", "/abort_request", msgspec.json.encode({"rid": request_id}), PROBE_TIMEOUT_S)
            except EngineUnavailable:
                return  # a dead engine holds nothing

    async def _pages(self) -> tuple[bytes, bytes]:
        """What `/v1/loads` and `/metrics` say now; the latter is empty without --enable-metrics."""
        loads = await self._read("/v1/loads")
        metrics = await self._send("GET", "/metrics", None, PROBE_TIMEOUT_S)
        return loads, metrics.content if metrics.status_code == httpx.codes.OK else b""

    async def _read(self, path: str) -> bytes:
        """What a route of the server's own tells; whatever else it answers is one error, for no prompt is at fault."""
        response = await self._send("GET", path, None, PROBE_TIMEOUT_S * 2)
        if response.status_code != httpx.codes.OK:
            raise EngineUnavailable(self.url, f"{path}: {response.status_code} {error_message(response.content)}", kind="error")
        return response.content

    async def _send(self, method: str, path: str, body: bytes | None, timeout_s: float) -> httpx.Response:
        if self._http is None:
            raise RuntimeError("Engine is used as a context manager")
        url = self._urls.get(path) or self._urls.setdefault(path, httpx.URL(self.url + path))
        timeout = {"read": timeout_s, "write": timeout_s, "pool": timeout_s, "connect": CONNECT_TIMEOUT_S}
        # Not `client.request`: that parses the same URL and merges the same headers anew, a tenth of all that a prompt costs.
        request = httpx.Request(method, url, headers=self._headers, content=body, extensions={"timeout": timeout})
        try:
            return await self._http.send(request)
        except (httpx.HTTPError, aiohttp.ClientError) as error:  # the transport passes some of aiohttp's on
            raise self._unavailable(error, path, timeout_s) from error

    def _unavailable(self, error: httpx.HTTPError | aiohttp.ClientError, path: str, timeout_s: float) -> EngineUnavailable:
        # The transport reports a connection that dies under a request as ConnectTimeout; aiohttp's own error tells them apart.
        cause = error.__cause__
        if isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return EngineUnavailable(self.url, f"no connection ({cause})", kind="refused")
        if isinstance(cause, TimeoutError) or isinstance(error, httpx.ReadTimeout):
            return EngineUnavailable(self.url, f"no answer to {path} within {timeout_s:g} s", kind="timeout")
        return EngineUnavailable(self.url, f"connection lost ({type(cause or error).__name__})", kind="lost")

    def _raise_for_status(self, response: httpx.Response, asked: str) -> None:
        status = response.status_code
        if status == httpx.codes.OK:
            return
        message = error_message(response.content)
        if status in {httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.TOO_MANY_REQUESTS}:
            raise EngineOverloaded(self.url, message, _retry_after_s(response.headers.get("retry-after")))
        if status not in PROMPTS_FAULT:
            raise EngineUnavailable(self.url, f"{status} {message}", kind="error")
        raise PromptRejected(asked, status, message)


def _retry_after_s(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value else None
    except ValueError:
        return None  # an HTTP date; SGLang sends none
