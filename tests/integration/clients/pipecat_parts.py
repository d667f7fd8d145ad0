"""Parts of a Pipecat pipeline that both of its services are tried with."""

from typing import Any

from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import Frame
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import FunctionCallParams

WEATHER = FunctionSchema(
    name="get_weather",
    description="The weather of a city",
    properties={"city": {"type": "string"}},
    required=["city"],
)


class Weather:
    """What :data:`WEATHER` does, and with what it was called."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def get(self, params: FunctionCallParams) -> None:
        self.calls.append(params.arguments)
        await params.result_callback(f"It rains in {params.arguments['city']}.")


class Tap(FrameProcessor):
    """Remembers every frame that passes, in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Frame] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.frames.append(frame)
        await self.push_frame(frame, direction)
