"""The flows of a watch in a terminal: the numbers of the page, for those on ssh."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Resize
from textual.widgets import DataTable, Footer, Input, Sparkline, Static

from parshall.errors import ParshallError, printable
from parshall.host.quantities import many
from parshall.live.saved import Saved
from parshall.live.view import GROUPS, View
from parshall.live.watch import Watch

_REFRESH_S = 0.25
_STEP_MS = 5000.0
# Name, title, width; what has no room goes from the end of the second list.
_FLOWS = (
    *(("process", "process", 10), ("peer", "peer", 21), ("acked_Mbps", "out Mb/s", 10)),
    *(("received_Mbps", "in Mb/s", 9), ("rtt_ms", "rtt ms", 8), ("retr", "retr", 6), ("cwnd", "cwnd", 6)),
    *(("state", "state", 12), ("local", "local", 21), ("unit", "unit", 16), ("cc", "cc", 7), ("pid", "pid", 8)),
    *(("acked", "acked", 7), ("received", "received", 8), ("flow", "flow", 6)),
    ("retr_for", "retr for", 20),
)
_GROUPS = (
    *(("group", "group", 24), ("flows", "flows", 7), ("acked_Mbps", "out Mb/s", 10)),
    *(("received_Mbps", "in Mb/s", 9), ("retr", "retr", 7), ("rtt_ms", "rtt ms", 8), ("cwnd", "cwnd", 6)),
    *(("acked", "acked", 7), ("received", "received", 8)),
)
_LEFT = ("process", "peer", "local", "unit", "cc", "state", "retr_for", "group")
_BYTES = ("acked", "received")
_REASONS_SHOWN = 3
# As the table puts them around each cell.
_PADDING = 2
# Of what a command does, in the note above the table.
_TEXT_CHARS = 50


class LiveApp(App[None]):
    """The flows of a watch, until a key ends it.

    Parameters
    ----------
    watch : Watch
        What is shown.
    saved : Saved
        Where spans are saved.
    is_stopping : callable
        Polled; whether a signal has requested the end.
    """

    CSS = """
    #head { height: auto; padding: 0 1; background: $panel; }
    #state { width: 1fr; }
    #cost { width: auto; }
    #note { height: auto; padding: 0 1; }
    #words { display: none; height: 1; border: none; padding: 0 1; }
    #flow { display: none; height: 4; padding: 0 1; }
    #lists { display: none; height: 1fr; padding: 0 1; }
    Sparkline { height: 1; }
    DataTable { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "Quit"),
        Binding("s", "sort(1)", "Sort"),
        Binding("r", "reverse", show=False),
        Binding("g", "group", "Group"),
        Binding("slash", "filter", "Filter"),
        Binding("p", "pause", "Pause"),
        Binding("left_square_bracket", "step(-1)", "Time", key_display="[ ]"),
        Binding("right_square_bracket", "step(1)", show=False),
        Binding("m", "mark", "Mark"),
        Binding("w", "save", "Save"),
        Binding("l", "lists", "Lists"),
        Binding("escape", "close", show=False),
    ]

    def __init__(self, watch: Watch, saved: Saved, is_stopping: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self._watch, self._saved, self._is_stopping = watch, saved, is_stopping
        self._view = View()
        self._frame: dict[str, Any] = {}
        self._drawn: tuple[int, View, int] | None = None
        self._flow: int | None = None
        self._message = ""
        # Start and end of the span that is saved; None: of all that is kept.
        self._marks: tuple[float | None, float | None] = (None, None)
        self._state_text, self._cost_text, self._note_text, self._flow_text, self._flow_last = (
            Static(id=name, markup=False) for name in ("state", "cost", "note", "name", "last")
        )
        self._words = Input(
            id="words", placeholder="process, address, unit, state, cause", max_length=200, compact=True
        )
        self._table: DataTable[Text] = DataTable(id="table", cursor_type="row", zebra_stripes=True)
        self._rate = Sparkline(id="rate")
        self._below = Vertical(self._flow_text, self._rate, self._flow_last, id="flow")
        self._lists_text = Static(id="lists_text", markup=False)
        self._lists = VerticalScroll(self._lists_text, id="lists")

    def compose(self) -> ComposeResult:
        """Arrange the widgets."""
        yield Horizontal(self._state_text, self._cost_text, id="head")
        yield self._note_text
        yield self._words
        yield self._table
        yield self._lists
        yield self._below
        yield Footer()

    def on_mount(self) -> None:
        """Begin to draw."""
        self._table.focus()
        self.set_interval(_REFRESH_S, self._refresh)
        self._refresh()

    def on_resize(self, _: Resize) -> None:
        """Choose the columns that have room."""
        self._refresh()

    def _refresh(self) -> None:
        if self._is_stopping():
            self.exit()
            return
        table = self._table
        height = max(table.size.height, 10)
        view = replace(self._view, count=min(10 * height, 500))
        now = self._watch.version, view, self.size.width
        if now == self._drawn:
            return
        self._drawn = now
        self._frame = frame = json.loads(self._watch.frame(view))
        self._draw_head(frame)
        self._draw_table(table, frame)
        if self._lists.styles.display == "block":
            self._lists_text.update("\n".join(map(printable, list_lines(frame))))
        if self._flow is not None:
            self._draw_flow(self._flow)

    def _draw_head(self, frame: dict[str, Any]) -> None:
        state = "paused" if self._view.at_ns is not None else "ended" if frame["has_ended"] else "live"
        when = datetime.fromtimestamp(frame["time_ms"] / 1e3).strftime("%H:%M:%S") if frame["time_ms"] else "-"
        self._state_text.update(f"{state} {when}")
        ledger, page = frame["ledger"], f"page {frame['page_cpu_share']:.1%}"
        if ledger is None:
            cost = f"no account yet; {page}"
        else:
            lost = sum(ledger["lost"].values())
            hooks = "hooks {:,.0f} to {:,.0f} ns".format(*ledger["hooks_ns"]) if ledger["hooks_ns"] else "hooks ?"
            cost = f"lost {lost:,}; reader {ledger['reader_cpu_share']:.1%}, {page} of a CPU; {hooks}"
        self._cost_text.update(cost)
        sums, words = frame["now"], f", filter: {self._view.words}" if self._view.words else ""
        kind = f"groups by {self._view.group}" if self._view.group else "flows"
        titles = {name: title for name, title, _ in (*_FLOWS, *_GROUPS)}
        order = f"{titles[self._view.sort]}, {'most' if self._view.descending else 'least'} first"
        note = f"{frame['lines']:,} {kind} by {order}{words}; acked {sums['acked_Mbps']:,.2f}, "
        note += f"received {sums['received_Mbps']:,.2f} Mbit/s"
        full = sum(row["syns_refused"] + row["acks_refused"] for row in frame["listeners"])
        note += f"; full accept queues refused {full:,}" if full else ""
        readers = [reader for ring in frame["rings"] for reader in ring["readers"]]
        if readers:
            matched, dropped = (sum(reader[name] for reader in readers) for name in ("matched", "dropped"))
            note += f"; {many(len(readers), 'reader')} of rings matched {matched:,} packets, {dropped:,} found no room"
        note += "".join(
            f"; {one['command']} (pid {one['pid']}): {one['text'][:_TEXT_CHARS]}" for one in frame["commands"][:2]
        )
        note += _dropped(frame["packets"])
        extra = "; ".join(filter(None, (self._marks_text(), frame["problem"] or self._message)))
        self._note_text.update(f"{note}\n{extra}" if extra else note)

    def _columns(self) -> list[tuple[str, str, int]]:
        """Return the columns that have room."""
        room = self.size.width - 2
        columns = []
        for column in _GROUPS if self._view.group else _FLOWS:
            room -= column[2] + _PADDING
            if room < 0:
                break
            columns.append(column)
        return columns

    def _draw_table(self, table: "DataTable[Text]", frame: dict[str, Any]) -> None:
        columns = self._columns()
        titles = [f"{title} {'▾' if self._view.descending else '▴'}" if name == self._view.sort else title
                  for name, title, _ in columns]  # fmt: skip
        row, scroll = table.cursor_row, table.scroll_y
        table.clear(columns=True)
        for (name, _, width), title in zip(columns, titles, strict=True):
            table.add_column(Text(title, justify="left" if name in _LEFT else "right"), key=name, width=width)
        found = frame["columns"]
        keys = found.get("group" if self._view.group else "flow", [])
        for index, key in enumerate(keys):
            cells = [
                _cell(name, found[name][index], may_lack=name in _BYTES and found[f"{name}_may_lack"][index])
                for name, _, _ in columns
            ]
            table.add_row(*cells, key=str(key) if not self._view.group else None)
        if keys:
            table.move_cursor(row=min(row, len(keys) - 1), scroll=False)
            table.scroll_to(y=scroll, animate=False)

    def _draw_flow(self, flow: int) -> None:
        curve = json.loads(self._watch.curve(flow))
        facts = self._watch.facts(flow)
        end = f"{facts['process']} {facts['local']} to {facts['peer']}" if facts else "forgotten"
        self._flow_text.update(f"flow {flow}: {end}")
        rates = [acked + received for acked, received in zip(curve["acked_Mbps"], curve["received_Mbps"], strict=True)]
        shown = rates[-self.size.width :]
        self._rate.data = shown
        if shown:
            cwnd, rtt = (
                _cell(name, curve[key][-1]).plain for name, key in (("cwnd", "cwnd_segments"), ("rtt_ms", "srtt_ms"))
            )
            # The curve reaches from the least to the greatest.
            last = f"{min(shown):,.2f} to {max(shown):,.2f} Mbit/s; cwnd {cwnd}, rtt {rtt} ms"
            if curve["retransmitted_for"]:
                last += f"; sent again: {curve['retransmitted_for']}"
            self._flow_last.update(last)

    def on_data_table_row_selected(self, event: "DataTable.RowSelected") -> None:
        """Show a flow below the table."""
        if event.row_key.value is not None:
            self._flow = int(event.row_key.value)
            self._below.styles.display = "block"
            self._draw_flow(self._flow)

    def on_data_table_header_selected(self, event: "DataTable.HeaderSelected") -> None:
        """Sort by a column; a second time, the other way round."""
        name = str(event.column_key.value)
        self._sort_by(name, not self._view.descending if name == self._view.sort else name not in _LEFT)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the words are typed."""
        self._change(words=event.value)

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Go back to the table."""
        self._words.styles.display = "none"
        self._table.focus()

    def action_sort(self, step: int) -> None:
        """Sort by the next column."""
        names = [name for name, _, _ in self._columns() if name != "pid"]
        at = names.index(self._view.sort) if self._view.sort in names else -1
        name = names[(at + step) % len(names)]
        self._sort_by(name, name not in _LEFT)

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self._sort_by(self._view.sort, not self._view.descending)

    def action_group(self) -> None:
        """Group by the next of the names."""
        names = ("", *GROUPS)
        group = names[(names.index(self._view.group) + 1) % len(names)]
        self._change(group=group, sort="acked_Mbps", descending=True)

    def action_filter(self) -> None:
        """Ask for words."""
        words = self._words
        words.styles.display = "block"
        words.focus()

    def action_pause(self) -> None:
        """Stop at what is shown, or go on."""
        if self._view.at_ns is not None:
            self._change(at_ns=None)
        elif self._frame.get("time_ms"):
            self._change(at_ns=_ns(self._frame["time_ms"]))

    def action_step(self, step: int) -> None:
        """Go back or on in time; beyond the newest is now."""
        first, last = self._frame.get("kept_ms", (None, None))
        if first is None:
            return
        time_ms = self._frame["time_ms"] + step * _STEP_MS
        self._change(at_ns=None if time_ms >= last else _ns(max(time_ms, first)))

    def action_mark(self) -> None:
        """Mark what is shown as the start of what is saved, then as its end; then remove both marks."""
        now_ms = self._frame.get("time_ms") or None
        start, end = self._marks
        if start is None:
            self._marks = (now_ms, None)
        elif end is None and now_ms is not None and now_ms > start:
            self._marks = (start, now_ms)
        else:
            self._marks = (None, None)
        self._drawn = None
        self._refresh()

    def _marks_text(self) -> str:
        start, end = (each and datetime.fromtimestamp(each / 1e3).strftime("%H:%M:%S") for each in self._marks)
        return f"marked {start} to {end or 'now'}" if start else ""

    def action_lists(self) -> None:
        """Show the lists in place of the table, or the table again."""
        is_shown = self._lists.styles.display == "block"
        self._lists.styles.display = "none" if is_shown else "block"
        self._table.styles.display = "block" if is_shown else "none"
        (self._table if is_shown else self._lists).focus()
        self._drawn = None
        self._refresh()

    def action_save(self) -> None:
        """Save what is kept, up to what is shown, or what is between the marks, as a log."""
        first, last = self._frame.get("kept_ms", (None, None))
        if first is None:
            return
        start, end = self._marks
        until_ms = end or (last if self._view.at_ns is None else self._frame["time_ms"])
        try:
            path, problem = self._saved.save(Path(self._watch.path), _ns(start or first), _ns(until_ms))
            self._message = f"saved in {path}" + (f"; {problem}" if problem else "")
        except (ParshallError, OSError) as error:
            self._message = f"not saved: {error}"
        self._drawn = None
        self._refresh()

    def action_close(self) -> None:
        """Close what was opened last: the filter, or the flow."""
        words = self._words
        if words.styles.display == "block":
            words.value = ""
            words.styles.display = "none"
            self._table.focus()
        else:
            self._flow = None
            self._below.styles.display = "none"

    def _sort_by(self, name: str, descending: bool) -> None:
        if name != "pid":
            self._change(sort=name, descending=descending)

    def _change(self, **changes: Any) -> None:
        self._view = replace(self._view, **changes)
        self._refresh()


def list_lines(frame: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of all lists of a frame: what the page has below its table."""
    yield "accept queues that were full"
    for row in frame["listeners"]:
        address = f"[{row['local_address']}]" if row["ip_version"] == 6 else row["local_address"]
        yield (
            f"  {address}:{row['local_port']} of {row['command'] or '?'} (pid {row['pid']}): "
            f"{row['syns_refused']:,} SYNs and {row['acks_refused']:,} ACKs refused"
        )
    if not frame["listeners"]:
        yield "  none"
    yield "commands of Parshall"
    for one in frame["commands"]:
        yield f"  {one['command']} (pid {one['pid']}): {one['text']}" if one["pid"] else f"  {one['text']}"
        yield from (f"    {_interval(row)}" for row in one["statements"])
    if not frame["commands"]:
        yield "  none"
    yield "rings of captures"
    for ring in frame["rings"]:
        yield f"  {ring['ring']}" + (f": {ring['hooks']}; {ring['policy']} reader" if ring["hooks"] else "")
        for reader in ring["readers"]:
            yield (
                f"    pid {reader['pid']}, {reader['filter']}: {reader['matched']:,} of {reader['seen']:,} packets "
                f"matched, {reader['dropped']:,} found no room"
            )
    if not frame["rings"]:
        yield "  none"
    packets = frame["packets"]
    if packets:
        yield f"packets in the kernel, in {packets['attached_s']:.1f} of {packets['wall_s']:.1f} s"
        for row in packets["drops"]:
            yield f"  {row['packets']:,} dropped for {row['reason']} after {', '.join(row['after'])}"
        for row in packets["stages"]:
            yield (
                f"  {row['path']:<12}{row['stage']:<18}{row['packets']:>10,} median {row['median_us']:,.2f} us, "
                f"p99 {row['p99_us']:,.2f} us"
            )


def _interval(row: dict[str, Any]) -> str:
    """Return a statement of a study with its interval."""
    verdict = "open" if row["is_same"] is None else "same" if row["is_same"] else "different"
    unit = f" {row['unit']}" if row["unit"] else ""
    if row["low"] is None or row["high"] is None or row["limit"] is None:
        return f"{row['source']}: {verdict}"
    span = f"{row['low']:+.3g} to {row['high']:+.3g}{unit}"
    return f"{row['source']}: {verdict}, {span}, held against {row['limit']:.3g}{unit}"


def _dropped(packets: dict[str, Any] | None) -> str:
    """Return what the measurement of paths says of drops; empty without one."""
    if packets is None:
        return ""
    dropped = ", ".join(f"{row['packets']:,} {row['reason']}" for row in packets["drops"][:_REASONS_SHOWN])
    rest = len(packets["drops"]) - _REASONS_SHOWN
    more = f" and for {many(rest, 'more reason')}" if rest > 0 else ""
    share = packets["reader_cpu_s"] / packets["wall_s"] if packets["wall_s"] else 0.0
    programs = "{:,.0f} to {:,.0f} ns".format(*packets["hooks_ns"]) if packets["hooks_ns"] else "not measured"
    cost = f"path lost {packets['lost']:,}, its reader {share:.1%}, its programs {programs}"
    return f"; {cost}; dropped in {packets['attached_s']:.1f} s: {dropped or 'none'}{more}"


def _ns(time_ms: float) -> int:
    # Times of frames are exact to the microsecond.
    return int(time_ms * 1e6) + 1000


def _cell(name: str, value: Any, *, may_lack: bool = False) -> Text:
    """Return what a cell shows; `may_lack`: it may be more."""
    if value is None or value == "":
        text = "-"
    elif name in _BYTES:
        text = ("≥" if may_lack else "") + _amount(value)
    elif name.endswith("_Mbps") or name == "rtt_ms":
        text = f"{value:,.2f}"
    elif isinstance(value, int | float) and name not in ("group", "pid"):
        text = f"{value:,.0f}"
    else:
        text = str(value)
    return Text(text, justify="left" if name in _LEFT else "right", no_wrap=True, overflow="ellipsis")


def _amount(amount_bytes: int) -> str:
    amount = float(amount_bytes)
    for unit in ("", "k", "M", "G"):
        if amount < 999.5:
            return f"{amount:.3g}{unit}"
        amount /= 1000
    return f"{amount:,.0f}T"
