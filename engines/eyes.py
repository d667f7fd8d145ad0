"""Pictures for a language model that has no eyes, and the newest one of a camera for any.

A worker has one :class:`Gaze`: it turns pictures into words, one at a time on a thread, with
networks that are loaded when there is a first picture. Each session has :class:`Eyes`. Of a camera
the newest picture wins: what could not be looked at in time is passed over. An answer never waits
for a picture, but for the first one, and that not long.
"""

import base64
import binascii
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.media import MalformedDataError
from duologue.codecs.picture import decode_picture
from duologue.engines.engine import ImagePart, Message, ResponseRequest, See, TextPart
from duologue.engines.pulse import Pulse
from duologue.engines.sight import View, with_note

FIRST_SECONDS: Final = 1.0
"""An answer waits at most so long for what the camera shows first."""
KEPT_WORDS: Final = 64
"""Pictures of messages whose descriptions are remembered."""
UNREADABLE: Final = "(The user shows a picture that could not be read.)"
ELSEWHERE: Final = "(The user shows a picture that is on another server and was not fetched.)"

log = logging.getLogger(__name__)


class Describer(Protocol):
    """What puts a picture into words; blocks."""

    def describe(self, pixels: NDArray[np.uint8]) -> str: ...


class Gaze:
    """Pictures to words, for all sessions of a worker."""

    def __init__(self, load: Callable[[], Describer], pulse: Pulse) -> None:
        self._load = load
        self._pulse = pulse
        self._describer: Describer | None = None
        self._limiter = anyio.CapacityLimiter(1)
        self._known: OrderedDict[bytes, str] = OrderedDict()

    async def describe(self, picture: bytes) -> str:
        """What a JPEG, PNG or WebP picture shows. MalformedDataError."""
        return await anyio.to_thread.run_sync(self._describe, picture, limiter=self._limiter)

    def _describe(self, picture: bytes) -> str:
        pixels = decode_picture(picture)
        if self._describer is None:
            self._describer = self._load()
        with self._pulse.step():
            return self._describer.describe(pixels)

    async def in_words(self, request: ResponseRequest) -> ResponseRequest:
        """The request with what its pictures show in their places."""
        if not _shows(request):
            return request
        messages = []
        for message in request.messages:
            parts = [
                TextPart(await self._part(part.url)) if isinstance(part, ImagePart) else part
                for part in message.parts
            ]
            messages.append(msgspec.structs.replace(message, parts=tuple(parts)))
        return msgspec.structs.replace(request, messages=tuple(messages))

    def known_words(self, request: ResponseRequest) -> ResponseRequest:
        """As :meth:`in_words`, up to the first picture that was not looked at yet."""
        messages: list[Message] = []
        for message in request.messages:
            parts = []
            for part in message.parts:
                if isinstance(part, ImagePart):
                    words = self._known.get(_key(part.url))
                    if words is None:
                        return msgspec.structs.replace(request, messages=tuple(messages))
                    part = TextPart(words)
                parts.append(part)
            messages.append(msgspec.structs.replace(message, parts=tuple(parts)))
        return msgspec.structs.replace(request, messages=tuple(messages))

    async def _part(self, url: str) -> str:
        key = _key(url)
        words = self._known.get(key)
        if words is None:
            words = await self._words(url)
            self._known[key] = words
            if len(self._known) > KEPT_WORDS:
                self._known.popitem(last=False)
        return words

    async def _words(self, url: str) -> str:
        if not url.startswith("data:"):
            return ELSEWHERE
        try:
            picture = base64.b64decode(url.partition(",")[2], validate=True)
            return f"(The user shows a picture of {await self.describe(picture)}.)"
        except (binascii.Error, MalformedDataError) as error:
            log.info("a picture could not be read: %s", error)
            return UNREADABLE


def _shows(request: ResponseRequest) -> bool:
    return any(isinstance(part, ImagePart) for m in request.messages for part in m.parts)


def _key(url: str) -> bytes:
    return hashlib.sha256(url.encode()).digest()


class Eyes:
    """What one session sees. All methods are for the event loop.

    ``gaze`` is None for a language model that takes pictures itself: it is given the newest one.
    """

    def __init__(self, gaze: Gaze | None, clock: Callable[[], float]) -> None:
        self._gaze = gaze
        self._clock = clock
        self._newest: tuple[bytes, float] | None = None
        self._view: View | None = None
        self._looking = False
        self._looked = anyio.Event()

    def see(self, command: See, tasks: anyio.abc.TaskGroup) -> None:
        """A newer picture, or none any more."""
        if not command.jpeg:
            self._newest = None
            self._view = None
            return
        self._newest = (command.jpeg, self._clock())
        if self._gaze is not None and not self._looking:
            self._looking = True
            tasks.start_soon(self._look, self._gaze)

    async def _look(self, gaze: Gaze) -> None:
        """Look at the newest picture until there is no newer one. The task's outermost line."""
        seen: tuple[bytes, float] | None = None
        try:
            while self._newest is not None and self._newest is not seen:
                seen = self._newest
                words = await gaze.describe(seen[0])
                if self._newest is not None:
                    self._view = View(words, seen[1])
        except MalformedDataError as error:
            log.info("a picture of a camera could not be read: %s", error)
        except Exception:
            log.exception("a picture of a camera could not be looked at")
        finally:
            self._looking = False
            self._looked.set()
            self._looked = anyio.Event()

    async def shown(self, request: ResponseRequest) -> ResponseRequest:
        """The request as the model is given it: its pictures, and what the camera shows now."""
        if self._gaze is None:
            return self._with_picture(request)
        request = await self._gaze.in_words(request)
        if self._view is None and self._newest is not None and self._looking:
            with anyio.move_on_after(FIRST_SECONDS):
                await self._looked.wait()
        if self._view is None:
            return request
        return with_note(request, self._view.note(self._clock()))

    def known(self, request: ResponseRequest) -> ResponseRequest:
        """The beginning of the request that will not change."""
        return request if self._gaze is None else self._gaze.known_words(request)

    def _with_picture(self, request: ResponseRequest) -> ResponseRequest:
        if self._newest is None:
            return request
        jpeg, taken = self._newest
        url = f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"
        note = View("as in this picture", taken).note(self._clock())
        return with_note(request, note, ImagePart(url))
