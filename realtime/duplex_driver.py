"""A Live session over a frame-locked model: what the model says, to its room."""

import logging

import anyio

from duologue.engines.duplex import DuplexCommand, DuplexStream
from duologue.engines.engine import EngineLost
from duologue.engines.scribes import Scribe, Scribes, Written
from duologue.models.silero_vad import SileroVad
from duologue.realtime.live_room import LiveRoom
from duologue.sessions.errors import ProtocolError
from duologue.sessions.live_duplex import DuplexVoice
from duologue.sessions.live_listening import LiveListening
from duologue.sessions.ports import Clock

logger = logging.getLogger(__name__)

LOST = ProtocolError("engine_unavailable", "The model was lost, with all that it had heard.")


class LiveDuplex:
    """Serve it while the room runs."""

    def __init__(self, room: LiveRoom, stream: DuplexStream, clock: Clock) -> None:
        self.stream = stream
        self._room = room
        self._clock = clock
        self._scribe: Scribe | None = None
        self._farewell = (1000, "the session is over")

    def write_down(self, scribes: Scribes, vad: SileroVad) -> LiveListening:
        """Have it written what the user says, from now on to the end."""

        def say(written: Written) -> None:
            listening.told(written, self._clock.now())
            self._room.flush()

        self._scribe = scribes.open(self._room.id, say)
        listening = LiveListening(self._room.session, vad, self._scribe.tell)
        return listening

    def tell(self, command: DuplexCommand) -> None:
        """Give the model a command, if it is there."""
        try:
            self.stream.send(command)
        except EngineLost:
            # The receiving side learns of it too, and ends the session.
            logger.debug("live session %s: a command was lost with its worker", self._room.id)

    async def serve(self, voice: DuplexVoice) -> None:
        """Until the session is closed; then everybody is let go, and the model's place too."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._listen, voice)
                await self._room.over.wait()
                tasks.cancel_scope.cancel()
            await self._room.aclose(*self._farewell)
        finally:
            if self._scribe is not None:
                self._scribe.close()
            with anyio.CancelScope(shield=True):
                await self.stream.aclose()

    async def _listen(self, voice: DuplexVoice) -> None:
        while True:
            try:
                output = await self.stream.receive()
            except EngineLost:
                self._farewell = (1011, LOST.message)
                self._room.session.fail(LOST)
                self._room.close("connection_lost")
                return
            voice.told(output, self._clock.now())
            self._room.pump()
