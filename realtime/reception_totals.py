"""What all calls of a process have heard together, for its figures."""

from dataclasses import dataclass


@dataclass(slots=True)
class ReceptionTotals:
    """Counted up to a second late, and never down. Times in seconds of sound."""

    received: int = 0
    """Packets that came, and
    lost, those that never did, as far as their numbers tell."""
    lost: int = 0
    decoded: float = 0.0
    """Sound given to sessions, of all kinds; of it was
    concealed, guessed, and
    recovered, taken from the redundancy of later packets."""
    concealed: float = 0.0
    recovered: float = 0.0
    waited: float = 0.0
    """Seconds that packets waited for others before them, together."""

    def add(self, after: "ReceptionTotals", before: "ReceptionTotals") -> None:
        """Add what one stream has counted between two looks at it."""
        # A late packet takes back a loss: that was counted, and stays so.
        self.lost += max(0, after.lost - before.lost)
        self.received += after.received - before.received
        self.decoded += after.decoded - before.decoded
        self.concealed += after.concealed - before.concealed
        self.recovered += after.recovered - before.recovered
        self.waited += after.waited - before.waited
