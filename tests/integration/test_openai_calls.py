"""The ``openai`` package makes a call for somebody, watches it from beside and hangs up."""

from typing import Any

import anyio
import pytest
from aiortc import RTCSessionDescription
from openai import AsyncOpenAI, NotFoundError

from tests.caller import calling
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.weights]


async def test_a_call_is_made_watched_steered_and_hung_up(scripted_server: Any) -> None:
    async with (
        AsyncOpenAI(api_key="any", base_url=f"{scripted_server.url}/v1") as client,
        calling() as caller,
    ):
        answer = await client.realtime.calls.create(
            sdp=await caller.offer(),
            session={"type": "realtime", "model": "any", "instructions": "Be brief."},
        )
        call_id = answer.response.headers["location"].split("/").pop()
        await caller.connection.setRemoteDescription(RTCSessionDescription(answer.text, "answer"))
        created = await caller.event("session.created")
        assert created["session"]["instructions"] == "Be brief."
        async with client.realtime.connect(call_id=call_id) as beside:
            assert (await beside.recv()).type == "session.created"
            await beside.response.create()
            with anyio.fail_after(PATIENCE_S):
                while (await beside.recv()).type != "output_audio_buffer.started":
                    pass
            await caller.until(caller.heard)
            await client.realtime.calls.hangup(call_id)
        await caller.until(lambda: caller.gone)
        with pytest.raises(NotFoundError):
            await client.realtime.calls.hangup(call_id)


async def test_an_offer_alone_makes_a_call(scripted_server: Any) -> None:
    async with (
        AsyncOpenAI(api_key="any", base_url=f"{scripted_server.url}/v1") as client,
        calling() as caller,
    ):
        answer = await client.realtime.calls.create(sdp=await caller.offer())
        await caller.connection.setRemoteDescription(RTCSessionDescription(answer.text, "answer"))
        await caller.event("session.created")
