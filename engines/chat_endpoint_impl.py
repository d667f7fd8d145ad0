"""The language stage on any server that speaks OpenAI's chat completions, over httpx."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import httpx
import msgspec

from duologue.engines.chat_messages import Json, chat_messages, chat_tools, named_choice
from duologue.engines.chat_stream import (
    LONGEST_EVENT,
    ChatStream,
    EventLines,
    broken,
    said_in,
    upstream,
)
from duologue.engines.engine import ResponseRequest
from duologue.engines.fairness import Rank
from duologue.engines.language import Generated, LanguageError

ERROR_BYTES = 64 * 1024
"""How much of an error's body is read."""

CLOSE_SECONDS = 2.0
USAGE_SECONDS = 2.0
"""How long is waited for the usage, once the answer is complete."""

_UNMADE = (httpx.ConnectError, httpx.ConnectTimeout)
_DROPPED = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.CloseError)
"""A kept connection that the server had closed looks like this."""


class ChatEndpointStage(msgspec.Struct, frozen=True, kw_only=True, tag="chat"):
    """A chat completions endpoint.

    ``base_url`` is what ``/chat/completions`` is added to, usually ending in ``/v1``. ``sees``:
    pictures may be sent. ``headers`` are added to every request. ``context_tokens`` is what the
    session assumes of the model's context. ``max_tokens_field`` is the name under which the bound
    on an answer is sent. Timeouts are in seconds: ``connect_s`` for the connection, ``first_s``
    until the first byte of the answer, ``gap_s`` between any two reads after it. ``batch``: answers
    of the batch lane that are asked for at the same time.
    """

    base_url: str
    model: str
    api_key: str = ""
    sees: bool = False
    headers: dict[str, str] = {}
    context_tokens: int = 32_768
    max_tokens_field: str = "max_tokens"
    temperature: float | None = None
    connect_s: float = 5.0
    first_s: float = 30.0
    gap_s: float = 30.0
    batch: int = 4

    def __repr__(self) -> str:
        """Without the key, which must not get into a log."""
        return f"ChatEndpointStage(base_url={self.base_url!r}, model={self.model!r})"


class ChatEndpointLanguage:
    """See :class:`duologue.engines.language.LanguageStage`. Nothing is retried once a request was
    answered; a connection that could not be made is tried once more."""

    def __init__(
        self, stage: ChatEndpointStage, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._stage = stage
        self._transport = transport
        self._client: httpx.AsyncClient | None = None

    @property
    def model(self) -> str:
        return self._stage.model

    @property
    def context_tokens(self) -> int:
        return self._stage.context_tokens

    @property
    def sees(self) -> bool:
        return self._stage.sees

    @property
    def remote(self) -> bool:
        return True

    async def load(self) -> None:
        stage = self._stage
        headers = {"Accept": "text/event-stream", "Content-Type": "application/json"}
        if stage.api_key:
            headers["Authorization"] = f"Bearer {stage.api_key}"
        self._client = httpx.AsyncClient(
            headers={**headers, **stage.headers},
            # Reading has deadlines of its own: the first one differs from the others.
            timeout=httpx.Timeout(stage.first_s, connect=stage.connect_s, read=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
            transport=self._transport,
            trust_env=False,
        )

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def warm(self, session: str, request: ResponseRequest) -> None:
        """There is nothing to warm."""

    def forget(self, session: str) -> None:
        """Nothing is kept of a session."""

    @asynccontextmanager
    async def answer(
        self, session: str, request: ResponseRequest, rank: Callable[[], Rank]
    ) -> AsyncIterator[AsyncIterator[Generated]]:
        try:
            body = msgspec.json.encode(self._body(request))
        except ValueError as error:
            raise LanguageError.of("engine_error", str(error)) from error
        response = await self._send(body)
        try:
            if response.status_code != 200:
                raise await self._refusal(response)
            yield _Answer(response, self._stage, self._hidden)
        finally:
            # An answer that was not read to its end ends with its connection.
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_SECONDS):
                await response.aclose()

    async def _send(self, body: bytes) -> httpx.Response:
        """The response's beginning; tried twice where no request can have been answered."""
        assert self._client is not None, "load() comes first"
        url = f"{self._stage.base_url.rstrip('/')}/chat/completions"
        for last in (False, True):
            request = self._client.build_request("POST", url, content=body)
            try:
                with anyio.fail_after(self._stage.first_s):
                    return await self._client.send(request, stream=True)
            except (*_UNMADE, *_DROPPED) as error:
                if last:
                    unmade = isinstance(error, _UNMADE)
                    how = "can't be reached" if unmade else "closed the connection"
                    raise upstream(f"The chat endpoint {how}.") from error
            except TimeoutError as error:
                raise upstream("The chat endpoint did not answer in time.") from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                kind = type(error).__name__
                raise upstream(f"The chat endpoint can't be used ({kind}).") from error
        raise AssertionError

    async def _refusal(self, response: httpx.Response) -> LanguageError:
        """What a status other than 200 means."""
        body = b""
        with anyio.move_on_after(USAGE_SECONDS):
            try:
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > ERROR_BYTES:
                        break
            except httpx.HTTPError:
                pass
        words, code = "", "upstream_error"
        try:
            answer = msgspec.json.decode(body, type=Json)
        except (msgspec.DecodeError, UnicodeDecodeError):
            words = said_in({"error": body[:ERROR_BYTES].decode(errors="replace")})
        else:
            words = said_in(answer)
            error = answer.get("error")
            if isinstance(error, dict) and error.get("code") == "context_length_exceeded":
                code = "context_too_long"
        words = self._hidden(words)
        status = response.status_code
        return LanguageError.of(code, f"The chat endpoint answered with status {status}: {words}")

    def _hidden(self, text: str) -> str:
        """The text without the secrets that were sent along with the request."""
        for secret in (self._stage.api_key, *self._stage.headers.values()):
            if len(secret) > 3:
                text = text.replace(secret, "***")
        return text

    def _body(self, request: ResponseRequest) -> Json:
        stage = self._stage
        body: Json = {
            "model": stage.model,
            "messages": chat_messages(request),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.tools:
            body["tools"] = chat_tools(request.tools)
            name = named_choice(request.tool_choice)
            body["tool_choice"] = (
                {"type": "function", "function": {"name": name}} if name else request.tool_choice
            )
            if not request.parallel_tool_calls:
                body["parallel_tool_calls"] = False
        if request.max_output_tokens is not None:
            body[stage.max_tokens_field] = request.max_output_tokens
        temperature = stage.temperature if request.temperature is None else request.temperature
        if temperature is not None:
            body["temperature"] = temperature
        if request.top_p is not None:
            body["top_p"] = request.top_p
        if request.seed is not None:
            body["seed"] = request.seed
        return body


class _Answer:
    """The pieces of one answer, as they are read off its connection."""

    def __init__(
        self,
        response: httpx.Response,
        stage: ChatEndpointStage,
        hidden: Callable[[str], str],
    ) -> None:
        self._bytes = response.aiter_bytes()
        self._whole = "text/event-stream" not in response.headers.get("content-type", "")
        self._stage = stage
        self._hidden = hidden
        self._lines = EventLines()
        self._stream = ChatStream()
        self._body = b""
        self._ready: deque[Generated] = deque()
        self._patience = stage.first_s
        self._over = False

    def __aiter__(self) -> "_Answer":
        return self

    async def __anext__(self) -> Generated:
        while not self._ready:
            if self._over:
                raise StopAsyncIteration
            try:
                await self._read()
            except LanguageError as error:
                failure = error.failure
                raise LanguageError.of(failure.code, self._hidden(failure.message)) from error
        return self._ready.popleft()

    async def _read(self) -> None:
        try:
            with anyio.fail_after(self._patience):
                chunk = await anext(self._bytes, None)
        except TimeoutError as error:
            if not self._stream.done:
                raise upstream("The chat endpoint fell silent.") from error
            chunk = None
        except httpx.HTTPError as error:
            if not self._stream.done:
                raise upstream("The chat endpoint broke the connection off.") from error
            chunk = None
        if chunk is None:
            self._end()
            return
        self._patience = self._stage.gap_s
        if self._whole:
            self._body += chunk
            if len(self._body) > LONGEST_EVENT:
                raise broken("an answer without an end")
        else:
            for data in self._lines.push(chunk):
                self._ready.extend(self._stream.take(data))
        if self._stream.done:
            self._patience = USAGE_SECONDS

    def _end(self) -> None:
        """The body is over. One that was not streamed is a completion in one piece."""
        self._over = True
        rest = [self._body] if self._whole else self._lines.finish()
        for data in rest:
            self._ready.extend(self._stream.take(data))
        self._ready.extend(self._stream.finish())
