"""A request's story on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from mainspring.console.payloads import Story


def tell(story: Story, console: Console) -> None:
    """Print a story: the sentence, what happened, and what each worker could have done."""
    console.print(f"request {story.id} for {story.model}: {story.outcome}", soft_wrap=True)
    console.print(story.summary, soft_wrap=True)
    console.print()
    steps = Table(box=None, pad_edge=False, show_header=False)
    steps.add_column(justify="right", no_wrap=True)
    steps.add_column(no_wrap=True)
    steps.add_column(overflow="fold")
    for step in story.steps:
        steps.add_row(_after(step.at_ns, story), step.what, step.text)
    console.print(steps)
    if not story.alternatives:
        return
    console.print()
    console.print(
        f"What each worker could have done, as it was predicted at {_after(story.decided_ns, story)}:"
    )
    options = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(2):
        options.add_column(no_wrap=True)
    options.add_column(overflow="fold")
    for each in story.alternatives:
        verdict = "chosen" if each.chosen else "in time" if each.feasible else "too late"
        if each.finish_ns is None:
            verdict = "could not"
        options.add_row(each.worker, verdict, each.text)
    console.print(options)
    if story.more:
        console.print(f"and {story.more} more workers")


def _after(instant_ns: int, story: Story) -> str:
    return f"{(instant_ns - story.arrived_ns) / 1e6:+.1f} ms"
