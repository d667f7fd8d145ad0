"""The conversation: items in order, and the rules for changing them."""

from collections.abc import Iterator
from dataclasses import replace

from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import (
    Content,
    FunctionCallItem,
    FunctionOutputItem,
    InputAudio,
    InputImage,
    InputText,
    Item,
    MessageItem,
    OutputAudio,
    OutputText,
)

ROOT = "root"


class History:
    """Items by id, in conversation order, within bounds."""

    def __init__(self, max_items: int, max_text: int) -> None:
        self._max_items = max_items
        self._max_text = max_text
        self._order: list[str] = []
        self._items: dict[str, Item] = {}
        self._text = 0
        self.version = 0
        """Grows with every change."""

    def __iter__(self) -> Iterator[Item]:
        return (self._items[item_id] for item_id in self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    def get(self, item_id: str) -> Item | None:
        return self._items.get(item_id)

    @property
    def last_id(self) -> str | None:
        return self._order[-1] if self._order else None

    def before(self, item_id: str) -> str | None:
        """The id of the item before this one; ``None`` for the first."""
        index = self._order.index(item_id)
        return self._order[index - 1] if index else None

    def add(self, item: Item, previous_item_id: str | None = None, *, bounded: bool = True) -> None:
        """Put an item at the end, at the beginning (``"root"``) or after another.

        Raises ProtocolError for an id that is taken, a previous item that is not there, or, unless
        ``bounded`` is false, a conversation that is full.
        """
        if item.id in self._items:
            raise ProtocolError(
                "item_create_duplicate_item_id",
                f"Error adding item: an item with ID '{item.id}' already exists.",
                "item.id",
            )
        size = text_size(item)
        full = len(self._order) >= self._max_items or self._text + size > self._max_text
        if bounded and full:
            raise ProtocolError(
                "item_create_limit_reached",
                "Error adding item: the conversation holds as much as it may; delete items first.",
            )
        if previous_item_id is None:
            index = len(self._order)
        elif previous_item_id == ROOT:
            index = 0
        elif previous_item_id in self._items:
            index = self._order.index(previous_item_id) + 1
        else:
            raise ProtocolError(
                "item_create_invalid_previous_item_id",
                f"Error adding item: the previous item with ID '{previous_item_id}' "
                "does not exist.",
                "previous_item_id",
            )
        self._order.insert(index, item.id)
        self._items[item.id] = item
        self._text += size
        self.version += 1

    def replace(self, item: Item) -> None:
        """Put a newer state of an item in its place; an item that was deleted stays deleted."""
        old = self._items.get(item.id)
        if old is None or old == item:
            return
        self._text += text_size(item) - text_size(old)
        self._items[item.id] = item
        self.version += 1

    def delete(self, item_id: str) -> None:
        """Raises ProtocolError for an item that is not there."""
        if item_id not in self._items:
            raise ProtocolError(
                "item_delete_invalid_item_id",
                f"Error deleting item: the item with ID '{item_id}' does not exist.",
                "item_id",
            )
        self._order.remove(item_id)
        self._text -= text_size(self._items.pop(item_id))
        self.version += 1

    def transcribed(self, item_id: str, transcript: str) -> None:
        """The words of a user's audio are known."""
        item = self._items.get(item_id)
        if isinstance(item, MessageItem):
            content = tuple(
                replace(part, transcript=transcript)
                if isinstance(part, InputAudio) and part.transcript is None
                else part
                for part in item.content
            )
            self.replace(replace(item, content=content))


def text_size(item: Item) -> int:
    """Characters that an item holds."""
    match item:
        case MessageItem():
            return sum(_content_size(part) for part in item.content)
        case FunctionCallItem():
            return len(item.name) + len(item.arguments)
        case FunctionOutputItem():
            return len(item.output)


def _content_size(part: Content) -> int:
    match part:
        case InputText() | OutputText():
            return len(part.text)
        case InputAudio():
            return len(part.transcript or "")
        case OutputAudio():
            return len(part.transcript)
        case InputImage():
            return len(part.url)
