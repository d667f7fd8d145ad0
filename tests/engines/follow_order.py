"""What the second rank of a small model on processors is told at its start."""

from duologue.engines.moshi_orders import Follow


def small_follow(folder: str = "/nowhere", *, rank: int = 1, slots: int = 3, pages: int) -> Follow:
    """Of two ranks, with nothing quantised."""
    return Follow(
        folder=folder,
        rank=rank,
        ranks=2,
        device="cpu",
        dtype="float32",
        kv_dtype="",
        weights="",
        slots=slots,
        pages=pages,
    )
