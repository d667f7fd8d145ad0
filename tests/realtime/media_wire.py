"""The transport of one call's media without a connection: for a receiver, and for a sender."""

from aiortc.rtp import AnyRtcpPacket, RtcpPacket

from duologue.codecs.rtp import RtpPacket, parse_rtp


class _Wire:
    def __init__(self) -> None:
        self.compounds: list[bytes] = []

    @property
    def reports(self) -> list[AnyRtcpPacket]:
        return [report for data in self.compounds for report in RtcpPacket.parse(data)]

    def send_report(self, data: bytes) -> bool:
        self.compounds.append(data)
        return True


class ReceivingWire(_Wire):
    """Keeps who listens to what, and what is reported to the other side."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: dict[int, object] = {}
        self.sources: list[int] = []

    def listen(self, payload_types: list[int], listener: object) -> None:
        self.listeners |= dict.fromkeys(payload_types, listener)

    def unlisten(self, listener: object) -> None:
        self.listeners.clear()

    def route_source(self, receiver: object, ssrc: int, before: int | None) -> None:
        self.sources.append(ssrc)

    def unroute_source(self, receiver: object) -> None:
        self.sources.clear()


class SendingWire(_Wire):
    """Keeps what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = True
        self.packets: list[RtpPacket] = []

    def send_media(self, data: bytes) -> bool:
        self.packets.append(parse_rtp(data))
        return True

    def route_sender(self, sender: object, ssrc: int) -> None:
        pass

    def unroute_sender(self, sender: object) -> None:
        pass
