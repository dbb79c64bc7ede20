"""Progress bars: what is done, how fast, and how long it will still take."""

from rich import filesize
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

console = Console()


class _Rate(ProgressColumn):
    def __init__(self, unit):
        super().__init__()
        self.unit = unit

    def render(self, task):
        speed = task.finished_speed or task.speed
        if speed is None:
            return ""
        if self.unit == "bytes":
            return f"{filesize.decimal(int(speed))}/s"
        return f"{speed:.1f} {self.unit}/s"


def progress_bar(unit, *, disable=False):
    """Returns a progress display whose rates are in `unit` a second ("bytes" become MB)."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TaskProgressColumn() if unit == "bytes" else MofNCompleteColumn(),
        _Rate(unit),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=disable,
    )
