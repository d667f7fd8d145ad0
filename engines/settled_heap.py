"""A heap that the cyclic collector leaves alone.

A full collection looks at every container that is alive, and no thread runs meanwhile. With torch,
transformers and vLLM there are some 400,000, which takes 300 to 400 ms: no token, no frame and no
tick moves. Hardly any of what a process has once its models are loaded ever goes, so it is put
where the collector does not look (``gc.freeze``, see CPython's documentation of ``gc``). What comes
later is collected as ever; a full collection of it takes a millisecond.
"""

import gc


def settle_heap() -> None:
    """Collect, and never look at what is left again. Blocks as long as a full collection does: for
    when everything is loaded and nobody is served yet.

    What is frozen is still freed when nothing refers to it, as long as it is in no cycle.
    """
    gc.collect()
    gc.freeze()
