"""A TCP line between two parties that a test cuts and slows down."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import TracebackType


class TcpLine:
    """Passes on what comes to `port` of this machine to another port of it, and back; to be used in a `with`.

    slow: seconds by which every piece of 64 KiB or less is late. cut: every connection is broken off, and so is every
    new one.
    """

    def __init__(self, behind: int) -> None:
        self.slow, self.cut = 0.0, False
        self._behind = behind
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> TcpLine:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.break_off()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def break_off(self) -> None:
        """Cuts the line."""
        self.cut = True

        def abort() -> None:
            for writer in self._writers:
                writer.transport.abort()

        self._loop.call_soon_threadsafe(abort)

    def mend(self) -> None:
        """The line is as it was."""
        self.cut, self.slow = False, 0.0

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        both = {writer}
        try:
            if not self.cut:
                there, back = await asyncio.open_connection("127.0.0.1", self._behind)
                both.add(back)
                self._writers |= both
                await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        except OSError:
            pass  # nobody is behind it
        finally:
            self._writers -= both
            for end in both:
                end.transport.abort()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await source.read(2**16):
                if self.slow:
                    await asyncio.sleep(self.slow)
                sink.write(piece)
                await sink.drain()
        sink.close()
