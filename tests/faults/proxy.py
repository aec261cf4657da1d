"""A proxy for TCP between a process and a server, which can be slow, swallow what it gets, and cut connections.

All proxies of a run live in one thread. What a fault sets holds for connections that are open and for those to come.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import dataclass, field

CHUNK = 65536


@dataclass
class Weather:
    """What the proxy does to those who go through it."""

    delay: float = 0.0  # seconds that each piece waits
    swallows: str = ""  # "to" the server, "from" it, or both: what goes there vanishes
    refuses: bool = False  # new connections are closed at once
    cuts_after: bytes | None = None  # cut as soon as a piece with this in it has been sent, and before the answer comes
    cuts: int = 0  # so many connections at most


@dataclass
class Proxy:
    """One proxy; `port` is where it listens."""

    target: int
    loop: asyncio.AbstractEventLoop
    port: int = 0
    weather: Weather = field(default_factory=Weather)
    cut_count: int = 0
    _pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = field(default_factory=set)
    _server: asyncio.AbstractServer | None = None

    def change(self, weather: Weather) -> None:
        """Let this be the weather from now on."""
        self.loop.call_soon_threadsafe(setattr, self, "weather", weather)

    def clear(self) -> None:
        """Let the weather be fine; connections that had swallowed something are cut, for they are spoilt."""

        def now() -> None:
            if self.weather.swallows:
                self._cut_all()
            self.weather = Weather()

        self.loop.call_soon_threadsafe(now)

    def cut(self) -> int:
        """Cut all connections, and return how many these were."""
        count = len(self._pairs)
        self.loop.call_soon_threadsafe(self._cut_all)
        return count

    def _cut_all(self) -> None:
        for pair in list(self._pairs):
            self._cut(pair)

    def _cut(self, pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        self.cut_count += 1
        for writer in pair:
            writer.transport.abort()

    async def serve(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop to listen, and cut all connections."""
        if self._server is not None:
            self._server.close()
        self._cut_all()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.weather.refuses:
            writer.transport.abort()
            return
        try:
            there, to_there = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, to_there)
        self._pairs.add(pair)
        tasks = [asyncio.ensure_future(self._carry(reader, to_there, "to", pair))]
        tasks += [asyncio.ensure_future(self._carry(there, writer, "from", pair))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for writing in pair:
            writing.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pairs.discard(pair)

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: str,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while piece := await reader.read(CHUNK):
                weather = self.weather
                if weather.delay:
                    await asyncio.sleep(weather.delay)
                if direction in weather.swallows.split():
                    continue
                writer.write(piece)
                await writer.drain()
                if direction == "to" and weather.cuts_after is not None and weather.cuts_after in piece and weather.cuts > 0:
                    weather.cuts -= 1
                    await asyncio.sleep(0)  # the piece is on its way
                    self._half_cut(pair)
                    return

    def _half_cut(self, pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        """Cut a connection such that the server still gets all that was sent to it."""
        client, server = pair
        self.cut_count += 1
        with suppress(OSError):
            server.write_eof()
        client.transport.abort()


class Proxies:
    """All proxies of a run, in a thread of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._all: list[Proxy] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def add(self, target: int) -> Proxy:
        """Return a proxy that leads to a port of this machine."""
        proxy = Proxy(target, self._loop)
        asyncio.run_coroutine_threadsafe(proxy.serve(), self._loop).result(10)
        self._all.append(proxy)
        return proxy

    def close(self) -> None:
        """End them all."""
        for proxy in self._all:
            asyncio.run_coroutine_threadsafe(proxy.close(), self._loop).result(10)
        asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def _end_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
