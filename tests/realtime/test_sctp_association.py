"""What a hostile peer may send over its data channel."""

import pytest
from aiortc.rtcsctptransport import DataChunk

from duologue.realtime.sctp_association import MOST_UNFINISHED, SctpAssociation

pytestmark = pytest.mark.anyio


class Wire:
    """A DTLS transport that goes nowhere."""

    state = "connected"
    _role = "server"

    def __init__(self):
        self.sent = []

    async def _send_data(self, data):
        self.sent.append(data)

    def _register_data_receiver(self, receiver):
        pass

    def _unregister_data_receiver(self, receiver):
        pass


@pytest.fixture
async def association():
    made = SctpAssociation(Wire(), 5000)
    made._remote_port = 5000
    yield made
    await made.stop()


@pytest.mark.parametrize(
    "data", [b"", b"x", bytes(12), bytes(200), b"\x13\x88\x13\x88" + bytes(8) + b"\x01" * 40]
)
async def test_a_packet_that_makes_no_sense_is_dropped(association, data):
    await association._handle_data(data)


async def test_text_that_is_not_utf8_is_dropped(association):
    class Channel:
        def emit(self, *_):
            raise AssertionError("told of nonsense")

        def _setReadyState(self, state):
            pass

    association._data_channels[1] = Channel()
    await association._receive(1, 51, b"\xff\xfe")


async def test_an_opening_of_a_channel_that_makes_no_sense_is_dropped(association):
    await association._receive(1, 50, b"\x03" + b"\xff" * 20)
    await association._receive(1, 50, b"\x02")


async def test_a_message_without_an_end_ends_the_association(association):
    association._association_state = association.State.ESTABLISHED
    association._last_received_tsn = 0
    size, tsn = 64 * 1024, 0
    while association._association_state is association.State.ESTABLISHED:
        tsn += 1
        chunk = DataChunk(flags=2 if tsn == 1 else 0)
        chunk.tsn, chunk.stream_id, chunk.stream_seq, chunk.protocol = tsn, 1, 0, 51
        chunk.user_data = bytes(size)
        await association._receive_data_chunk(chunk)
        assert tsn * size <= MOST_UNFINISHED + 2 * size
    assert association.state == "closed"
