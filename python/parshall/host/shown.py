"""How results show themselves: as text, and as HTML in notebooks. Text that others chose is escaped in both."""

import html
from collections.abc import Iterable, Sequence

from parshall.errors import printable
from parshall.host.input_file import brief


def text_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return a table as lines; numbers are aligned to the right."""
    listed = [list(row) for row in rows]
    texts = [[printable(cell) for cell in head], *([_text(cell) for cell in row] for row in listed)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    is_number = [any(_is_number(row[column]) for row in listed) for column in range(len(head))]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in texts
    ]


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as HTML; numbers are aligned to the right."""
    listed = [list(row) for row in rows]
    is_number = [any(_is_number(row[column]) for row in listed) for column in range(len(head))]

    def cells(tag: str, texts: Iterable[str]) -> str:
        sides = ("right" if right else "left" for right in is_number)
        return "".join(
            f'<{tag} style="text-align: {side}">{html_text(text)}</{tag}>'
            for text, side in zip(texts, sides, strict=True)
        )

    lines = [f"<tr>{cells('td', map(_text, row))}</tr>" for row in listed]
    return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def html_text(text: str) -> str:
    """Return a text for HTML: it ends no element, begins none, and has no control characters."""
    return html.escape(printable(text))


def html_lines(lines: Iterable[str]) -> str:
    """Return lines of text as HTML, as they are in a terminal."""
    text = "\n".join(map(html_text, lines))
    return f"<pre>{text}</pre>"


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if _is_number(cell) else brief(str(cell))
