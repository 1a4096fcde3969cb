"""A console that shows what others wrote without what a terminal would act on."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from codecl.errors import CONTROL


class PlainConsole(Console):
    """Names of folders, tasks and classes cannot move its cursor, nor change its colours."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control or segment.text == "\n" else _plain(segment.text)
            yield segment if text is segment.text else Segment(text, segment.style)


def _plain(text: str) -> str:
    return "\n".join(CONTROL.sub("", line) for line in text.split("\n")) if CONTROL.search(text) else text
