"""A TCP proxy on the loopback that can be cut or stalled: what a network does between a fleet and its Redis or its store."""

import asyncio
import contextlib
import ssl
from typing import Self

from ops.drill.loop_thread import LoopThread

_CHUNK = 1 << 16


class Proxy:
    """Passes bytes on to a port.

    While it is cut, connections are reset and none is served. While it is stalled, connections stand and nothing passes; what
    was sent meanwhile arrives afterwards, as TCP sends it again. With `tls` it is what clients speak to it, and ends here.
    """

    def __init__(self, target_port: int, target_host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self._target = (target_host, target_port)
        self._tls = tls
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._thread = LoopThread("proxy")
        self._writers: set[asyncio.StreamWriter] = set()
        self._cut = False
        self.port = 0

    def start(self, port: int = 0) -> Self:
        """Listen; on any free port if none is named."""
        self._thread.start()
        self.port = self._thread.call(self._listen(port))
        return self

    def cut(self) -> None:
        """Reset every connection, and every new one."""
        self._thread.call(self._reset())

    def stall(self) -> None:
        """Pass nothing on, and say nothing."""
        self._thread.loop.call_soon_threadsafe(self._flowing.clear)

    def restore(self) -> None:
        """Pass bytes on again."""
        self._cut = False
        self._thread.loop.call_soon_threadsafe(self._flowing.set)

    def stop(self) -> None:
        """End it."""
        self._thread.call(self._close())
        self._thread.stop()

    async def _listen(self, port: int) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=self._tls)
        return int(self._server.sockets[0].getsockname()[1])

    async def _reset(self) -> None:
        self._cut = True
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _close(self) -> None:
        self._server.close()
        await self._reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self._cut:
                return
            await self._flowing.wait()
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            self._writers.add(far_writer)
            try:
                await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))
            finally:
                self._writers.discard(far_writer)
                far_writer.transport.abort()
        except OSError:  # the server is down: so is the connection
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK):
                await self._flowing.wait()
                writer.write(chunk)
                await writer.drain()
        await self._flowing.wait()  # the end of a connection does not come through either
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()  # what was written before the end arrives
