"""What a language stage on vLLM is told."""

import msgspec


class VllmStage(msgspec.Struct, frozen=True, kw_only=True, tag="vllm"):
    """A model folder that vLLM serves.

    ``path`` is the folder. ``context`` bounds prompt and answer in tokens; 0 is what the model
    takes, 32,768 at most. ``places`` are conversations (0: as many as the cascade takes), ``batch``
    answers of the batch lane beside them. ``max_new_tokens`` bounds an answer that the request does
    not. ``temperature`` ``None`` is the model's own; ``seed`` ``None`` a new one for each answer.
    ``gpu_memory`` 0 is a share of 0.85 of each GPU's memory, or 0.15 of the machine's on a
    processor. ``load_format`` "" is safetensors; only ``trust_remote_code`` allows the pickled
    kinds. ``chat_template`` is a template's text, "" the model's own. ``media_hosts`` are the hosts
    from which https: pictures are fetched. The other names are those of vLLM's own options.
    """

    path: str
    name: str = ""
    context: int = 0
    places: int = 0
    batch: int = 32
    max_new_tokens: int = 1024
    temperature: float | None = None
    seed: int | None = None
    dtype: str = "auto"
    quantization: str = ""
    load_format: str = ""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    gpu_memory: float = 0.0
    eager: bool = False
    trust_remote_code: bool = False
    tool_parser: str = ""
    reasoning_parser: str = ""
    chat_template: str = ""
    media_hosts: tuple[str, ...] = ()
