"""The association under a session's data channel, made to stand what a hostile peer may send.

aiortc's own trusts its peer: a message that is not UTF-8 or a chunk that makes no sense would end
the whole connection with a traceback, and a message without an end would fill the memory.
"""

import logging
import struct
from typing import Final

from aiortc.rtcsctptransport import DataChunk, RTCSctpTransport

logger = logging.getLogger(__name__)

MOST_UNFINISHED: Final = 2 * 1024 * 1024
"""Bytes of messages that are not complete; whoever obeys the window it is given stays at half."""

_NONSENSE: Final = (AssertionError, ValueError, struct.error, IndexError, KeyError)


class SctpAssociation(RTCSctpTransport):
    """Drops what makes no sense, and ends with a peer that overruns its window."""

    async def _handle_data(self, data: bytes) -> None:
        try:
            await super()._handle_data(data)
        except _NONSENSE as error:
            logger.debug("dropped a packet of a data channel: %r", error)

    async def _receive(self, stream_id: int, pp_id: int, data: bytes) -> None:
        try:
            await super()._receive(stream_id, pp_id, data)
        except _NONSENSE as error:
            logger.debug("dropped a message of a data channel: %r", error)

    async def _receive_data_chunk(self, chunk: DataChunk) -> None:
        if self._advertised_rwnd < 1024 * 1024 - MOST_UNFINISHED:
            await self.stop()
            return
        await super()._receive_data_chunk(chunk)
