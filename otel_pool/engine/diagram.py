"""The state diagram of the manual, made from the transition table, so that the two cannot differ.

`python -m otel_pool.engine.diagram > docs/engine-states.md` writes the page; a test holds it equal to the table.
"""

from __future__ import annotations

import sys

from otel_pool.engine.state import TRANSITIONS, Signal, State

_PAGE = """# Engine states

How far the figures of an engine can be believed. This page is generated from the table in `otel_pool/engine/state.py`;
the comment there says what each state means and why.

```mermaid
stateDiagram-v2
    [*] --> {first}
{arrows}
```

{columns}
"""


def page() -> str:
    """The whole page, in Markdown."""
    arrows = [
        f"    {state.value} --> {target.value}: {signal.value}"
        for state, row in TRANSITIONS.items()
        for signal, target in row.items()
        if target is not state
    ]
    return _PAGE.format(first=State.UNKNOWN.value, arrows="\n".join(arrows), columns=_table())


def _table() -> str:
    lines = ["| state | " + " | ".join(signal.value for signal in Signal) + " |", "|---" * (len(Signal) + 1) + "|"]
    for state, row in TRANSITIONS.items():
        cells = (row[signal].value if signal in row else "cannot happen" for signal in Signal)
        lines.append(f"| {state.value} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())
