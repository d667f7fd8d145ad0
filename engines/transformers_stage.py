"""What a language stage on transformers is told."""

import msgspec


class TransformersStage(msgspec.Struct, frozen=True, kw_only=True, tag="transformers"):
    """A model that transformers runs: a folder, or a GGUF file.

    ``context`` bounds prompt and answer in tokens; 0 is what the model takes, 32,768 at most.
    ``slots`` are conversations whose history is kept warm (0: as many as the cascade takes),
    ``batch`` answers of the batch lane that are begun beside them; one token is made at a time.
    ``max_new_tokens`` bounds an answer that the request does not. ``temperature`` ``None`` is the
    model's own; ``seed`` ``None`` a new one for each answer. ``device`` is torch's name of one, ""
    is CUDA where there is one, else the processor. ``dtype`` is "auto" or the name of a type of
    torch. ``threads`` 0 is as many as there are cores, at most 8. ``chat_template`` is a template's
    text, "" the model's own.
    """

    path: str
    name: str = ""
    context: int = 0
    slots: int = 0
    batch: int = 1
    max_new_tokens: int = 320
    temperature: float | None = None
    seed: int | None = None
    device: str = ""
    dtype: str = "auto"
    threads: int = 0
    trust_remote_code: bool = False
    chat_template: str = ""
