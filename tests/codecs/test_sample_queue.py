"""Sound that waits: against a list."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from duologue.codecs.media import Int16Samples, MediaValueError, RingFullError
from duologue.codecs.sample_queue import SampleQueue


def count(first: int, last: int) -> Int16Samples:
    samples: Int16Samples = np.arange(first, last).astype(np.int16)
    return samples


@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.sampled_from(["write", "read", "clear"]), st.integers(0, 40))),
)
def test_a_queue_does_what_a_list_does(bound: int, steps: list[tuple[str, int]]) -> None:
    queue, model, written = SampleQueue(bound), list[int](), 0
    for step, size in steps:
        if step == "write":
            if len(model) + size > bound:
                with pytest.raises(RingFullError):
                    queue.write(count(0, size))
            else:
                queue.write(count(written, written + size))
                model += range(written, written + size)
                written += size
        elif step == "read":
            assert queue.read(size).tolist() == model[:size]
            model = model[size:]
        else:
            assert queue.clear() == len(model)
            model = []
        assert (len(queue), queue.room) == (len(model), bound - len(model))


def test_what_is_no_sound_is_refused() -> None:
    with pytest.raises(MediaValueError):
        SampleQueue(0)
    queue = SampleQueue(10)
    for samples in (np.zeros(2, np.float32), np.zeros((2, 2), np.int16)):
        with pytest.raises(MediaValueError):
            queue.write(samples)  # type: ignore[arg-type]
    with pytest.raises(MediaValueError):
        queue.read(-1)
