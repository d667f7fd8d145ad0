"""A client over a WebSocket: it plays what it is sent, and interrupts itself as clients do."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import numpy as np
import websockets
from websockets.asyncio.client import ClientConnection, connect

from duologue.engines.stamps import find_stamps
from load_tests.client import Answer, Client, ClientError, Event, cause
from load_tests.clock import nanoseconds, now
from load_tests.ear import Ear
from load_tests.recordings import RATE, Samples

_PREFIX = '{"type":"input_audio_buffer.append","audio":"'


def append_event(samples: Samples) -> str:
    """An ``input_audio_buffer.append`` event as it goes over the wire."""
    return f'{_PREFIX}{base64.b64encode(samples.astype("<i2").tobytes()).decode()}"}}'


class SocketClient(Client):
    """Its loudspeaker is an :class:`Ear`."""

    rate = RATE

    def __init__(self, socket: ClientConnection, opened: float, *, keep: bool = False) -> None:
        super().__init__(opened)
        self._socket = socket
        self.ear = Ear(keep=keep)

    async def send_text(self, text: str) -> None:
        try:
            await self._socket.send(text)
        except websockets.ConnectionClosed as error:
            raise ClientError(f"closed by the server: {error}") from None

    async def send_sound(self, samples: Samples) -> None:
        await self.send_text(append_event(samples))

    def audible(self, moment: float) -> bool:
        return self.ear.audible(moment)

    async def quiet(self) -> None:
        await anyio.sleep(max(0.0, self.ear.quiet_at - now()))

    async def stopped(self, answer: Answer, noticed: float) -> float | None:
        return noticed if self.heard.cut.get(answer.item_id) == noticed else None

    def played(self) -> list[tuple[float, Samples]]:
        return [(piece.start, np.frombuffer(piece.pcm, "<i2")) for piece in self.ear.pieces]

    def gaps(self) -> list[float]:
        return self.ear.gaps

    async def read(self) -> None:
        """Take everything in until the connection is closed."""
        reason = ""
        try:
            async for data in self._socket:
                moment = now()
                event = self.take(data, moment)
                match event.type:
                    case "response.output_audio.delta":
                        self._listen(event, moment)
                    case "response.output_audio.done":
                        self.ear.complete(event.item_id)
                    case "input_audio_buffer.speech_started":
                        await self._be_interrupted(moment)
                    case _:
                        continue
                self.stir()
        except websockets.ConnectionClosedError as error:
            reason = f"closed by the server: {error}"
        self.end(reason)

    def _listen(self, event: Event, moment: float) -> None:
        pcm = base64.b64decode(event.delta)
        answer = self.heard.answers[event.response_id]
        answer.audio_bytes += len(pcm)
        if event.item_id in self.heard.cut:
            self.heard.late_audio += 1
            return
        if answer.first_audio is None:
            answer.first_audio, answer.item_id = moment, event.item_id
        self.ear.receive(event.item_id, pcm, moment)
        for _, stamp in find_stamps(pcm):
            due = nanoseconds(stamp.due_ns)
            if due < answer.created:
                self.heard.drafted += 1
            else:
                self.heard.added_latency.append(moment - due)

    async def _be_interrupted(self, moment: float) -> None:
        cut = self.ear.flush(moment)
        if cut is None:
            return
        item_id, heard_ms = cut
        self.heard.cut[item_id] = moment
        await self.send(
            {
                "type": "conversation.item.truncate",
                "item_id": item_id,
                "content_index": 0,
                "audio_end_ms": heard_ms,
            }
        )


@asynccontextmanager
async def open_socket(
    url: str, *, key: str = "", model: str = "", keep: bool = False, seconds: float = 10.0
) -> AsyncIterator[SocketClient]:
    """A connected client whose session has been created.

    ``url``: the server's, as ``http://127.0.0.1:8765``. Raises ClientError when there is no
    session within ``seconds``.
    """
    address = f"{url.replace('http', 'ws', 1).rstrip('/')}/v1/realtime?model={model or 'any'}"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    opened = now()
    try:
        socket = await connect(
            address,
            additional_headers=headers,
            compression=None,
            max_size=None,
            max_queue=256,
            open_timeout=seconds,
            close_timeout=2.0,
            ping_interval=None,
            proxy=None,
        )
    except (OSError, TimeoutError, websockets.WebSocketException) as error:
        raise ClientError(f"can't connect: {error}") from None
    try:
        async with anyio.create_task_group() as tasks:
            client = SocketClient(socket, opened, keep=keep)
            tasks.start_soon(client.read)
            await client.until(lambda: client.created is not None, seconds, "session.created")
            yield client
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise cause(group) from None
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(2.0):
            await socket.close()
