"use strict";
// One page: asks for the lines that are on the screen, waits for news, and draws them. All text of others goes into
// textContent, nothing into markup.

const token = location.hash.slice(1);
const $ = (id) => document.getElementById(id);
const LINE_PX = matchMedia("(max-width: 620px)").matches ? 32 : 26;
// name, title, is a number, when there is little room
const FLOW_COLUMNS = [
  ["flow", "flow", true, "second"], ["process", "process", false, ""], ["unit", "unit", false, "second"],
  ["local", "local", false, "second"], ["peer", "peer", false, ""], ["acked_Mbps", "acked Mbit/s", true, ""],
  ["received_Mbps", "received Mbit/s", true, ""], ["rtt_ms", "rtt ms", true, "third"], ["cwnd", "cwnd", true, "third"],
  ["retr", "retr", true, ""], ["acked", "acked", true, "second"], ["received", "received", true, "second"],
  ["cc", "cc", false, "second"], ["state", "state", false, "third"], ["retr_for", "retr for", false, "second"],
];
const GROUP_COLUMNS = [
  ["group", "group", false, ""], ["flows", "flows", true, ""], ["acked_Mbps", "acked Mbit/s", true, ""],
  ["received_Mbps", "received Mbit/s", true, ""], ["rtt_ms", "median rtt ms", true, "third"],
  ["cwnd", "median cwnd", true, "third"], ["retr", "retr", true, ""], ["acked", "acked", true, "second"],
  ["received", "received", true, "second"],
];
const BYTE_COLUMNS = new Set(["acked", "received"]);

const view = { sort: "acked_Mbps", descending: true, words: "", group: "", offset: 0, count: 60, at_ms: null };
let version = 0;
let frame = null;
let paused = false;
let chosen = null;
let request = null;
let marks = { from: null, until: null };
let savedKey = null;

async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { "X-Parshall-Token": token, ...(options.headers || {}) } });
  if (!answer.ok) {
    const error = new Error((await answer.text()).trim() || `status ${answer.status}`);
    error.status = answer.status;
    throw error;
  }
  return answer.json();
}

function frameUrl(after) {
  const words = new URLSearchParams({
    sort: view.sort, descending: view.descending ? "1" : "0", words: view.words, group: view.group,
    offset: view.offset, count: view.count, after,
  });
  if (view.at_ms !== null) words.set("at_ms", view.at_ms);
  return `api/frame?${words}`;
}

// The view changed: what is waited for is of no use any more.
function changed() {
  version = 0;
  if (request) request.abort();
}

async function follow() {
  let pause_ms = 250;
  for (;;) {
    if (!token) return say("open the address that parshall live printed, with what follows the #", true);
    request = new AbortController();
    try {
      const news = await ask(frameUrl(version), { signal: request.signal });
      pause_ms = 250;
      // What was asked for before the view changed is not drawn.
      if (request.signal.aborted) continue;
      version = news.version;
      draw(news);
      if (paused || view.at_ms !== null) await untilChanged();
    } catch (error) {
      if (error.name === "AbortError") continue;
      if (error.status === 401) return say("wrong token: open the address that parshall live printed", true);
      say(error.status ? error.message : "disconnected; trying again", true);
      version = 0;
      await asleep(pause_ms);
      pause_ms = Math.min(2 * pause_ms, 4000);
    }
  }
}

const asleep = (ms) => new Promise((done) => setTimeout(done, ms));
function untilChanged() {
  return new Promise((done) => {
    if (request.signal.aborted) return done();
    request.signal.addEventListener("abort", done);
  });
}

function say(text, bad = false) {
  $("state").textContent = text;
  $("state").classList.toggle("bad", bad);
}

function clock(ms) {
  return ms ? new Date(ms).toLocaleTimeString([], { hour12: false }) : "-";
}
function rate(value) {
  if (value === null || value === undefined) return "-";
  if (value === 0) return "0";
  return value < 0.01 ? "<0.01" : value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
}
function amount(bytes) {
  if (bytes === null || bytes === undefined) return "-";
  let value = bytes;
  for (const unit of ["", "k", "M", "G", "T"]) {
    if (value < 999.5 || unit === "T") return unit ? value.toPrecision(3) + unit : String(value);
    value /= 1000;
  }
}
const whole = (value) => (value === null || value === undefined ? "-" : Number(value).toLocaleString("en"));
const nanoseconds = (means) => (means ? `${Math.round(means[0])} to ${Math.round(means[1])} ns` : "not measured");
const percent = (share) => `${(100 * share).toFixed(1)} % of a CPU`;

function cell(name, value, mayLack) {
  if (BYTE_COLUMNS.has(name)) return (mayLack ? "≥" : "") + amount(value);
  if (name.endsWith("_Mbps")) return rate(value);
  if (name === "rtt_ms") return value === null || value === undefined ? "-" : value.toFixed(2);
  if (typeof value === "number" && name !== "group") return whole(value);
  return value === null || value === undefined || value === "" ? "-" : String(value);
}

function draw(news) {
  frame = news;
  const past = view.at_ms !== null;
  say(news.has_ended ? "the log has ended" : paused ? "paused" : past ? "looking back" : news.log === null ? "live" : `live: ${news.log}`);
  $("problem").hidden = !news.problem;
  $("problem").textContent = news.problem || "";
  const ledger = news.ledger;
  if (ledger) {
    const causes = Object.entries(ledger.lost).filter(([, number]) => number > 0);
    const lost = causes.reduce((sum, [, number]) => sum + number, 0);
    $("lost").textContent = lost ? `${whole(lost)} (${causes.map(([cause, number]) => `${whole(number)} ${cause}`).join(", ")})` : "0";
    $("lost").className = lost ? "bad" : "good";
    $("reader").textContent = percent(ledger.reader_cpu_share);
    $("hooks").textContent = nanoseconds(ledger.hooks_ns);
    $("account").textContent = `Since the log began: seen ${whole(ledger.seen)} = filtered ${whole(ledger.filtered)} + thinned ${whole(ledger.thinned)} + logged ${whole(ledger.logged)} + lost ${whole(lost)}; ${amount(ledger.log_bytes)}B of log.` +
      (ledger.thinned ? " Packets are thinned: rates are complete, states and times are those of logged packets." : "");
  }
  $("page").textContent = percent(news.page_cpu_share);
  drawOtherCosts(news.packets, news.rings);
  $("mixed").hidden = !past;
  $("open").textContent = whole(news.now.flows_open);
  $("acked").textContent = rate(news.now.acked_Mbps);
  $("received").textContent = rate(news.now.received_Mbps);
  $("retransmitted").textContent = rate(news.now.retransmitted_per_s);
  drawTime(news);
  drawLines(news);
  drawListeners(news.listeners);
  drawCommands(news.commands);
  drawRings(news.rings);
  drawPackets(news.packets);
  if (!past && !paused) more(news);
}

// Of what is measured beside the flows. What a ring costs, its readers say at their end.
function drawOtherCosts(packets, rings) {
  $("path").hidden = !packets;
  if (packets) {
    const reader = percent(packets.wall_s ? packets.reader_cpu_s / packets.wall_s : 0);
    $("path_cost").textContent = `lost ${whole(packets.lost)}, reader ${reader}, programs ${nanoseconds(packets.hooks_ns)}`;
    $("path_cost").className = packets.lost ? "bad" : "";
  }
  const readers = rings.flatMap((ring) => ring.readers);
  const dropped = readers.reduce((sum, reader) => sum + reader.dropped, 0);
  $("captures").hidden = !readers.length;
  $("captures_cost").textContent = `lost ${whole(dropped)}`;
  $("captures_cost").className = dropped ? "bad" : "";
}

function drawTime(news) {
  const [first, last] = news.kept_ms;
  const slider = $("when");
  if (first === null) return;
  // Seconds before the newest time: browsers cut the digits of large values.
  slider.min = (first - last) / 1000;
  slider.max = 0;
  const ago_s = (last - news.time_ms) / 1000;
  if (view.at_ms === null && !paused) slider.value = 0;
  $("shown").textContent = view.at_ms === null ? clock(news.time_ms) : `${clock(news.time_ms)}, ${ago_s.toFixed(0)} s ago`;
  slider.setAttribute("aria-valuetext", $("shown").textContent);
}

function heads() {
  const columns = view.group ? GROUP_COLUMNS : FLOW_COLUMNS;
  $("heads").replaceChildren(...columns.map(([name, title, isNumber, room]) => {
    const head = document.createElement("th");
    head.scope = "col";
    head.className = `${isNumber ? "number" : ""} ${room}`.trim();
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.sort = name;
    button.textContent = name === "group" ? $("group").selectedOptions[0].textContent : title;
    if (name === view.sort) {
      head.setAttribute("aria-sort", view.descending ? "descending" : "ascending");
      button.textContent += view.descending ? " ▾" : " ▴";
    }
    button.addEventListener("click", () => {
      view.descending = view.sort === name ? !view.descending : isNumber;
      view.sort = name;
      view.offset = 0;
      $("scroll").scrollTop = 0;
      heads();
      changed();
      $("heads").querySelector(`[data-sort="${name}"]`).focus();
    });
    head.append(button);
    return head;
  }));
}

function space(lines, columns) {
  const row = document.createElement("tr");
  row.className = "space";
  row.setAttribute("aria-hidden", "true");
  const filler = document.createElement("td");
  filler.colSpan = columns;
  filler.style.height = `${lines * LINE_PX}px`;
  row.append(filler);
  return row;
}

function drawLines(news) {
  const columns = view.group ? GROUP_COLUMNS : FLOW_COLUMNS;
  const key = view.group ? "group" : "flow";
  const found = news.columns[key];
  const unit = view.group ? "group" : "flow";
  $("lines").textContent = `${whole(news.lines)} ${unit}${news.lines === 1 ? "" : "s"}`;
  if (!found) {
    $("rows").replaceChildren();
    return;
  }
  const active = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.flow : undefined;
  const rows = found.map((_, index) => {
    const row = document.createElement("tr");
    for (const [name, , isNumber, room] of columns) {
      const field = document.createElement("td");
      field.className = `${isNumber ? "number" : ""} ${room}`.trim();
      const mayLack = BYTE_COLUMNS.has(name) && news.columns[`${name}_may_lack`][index];
      field.textContent = cell(name, news.columns[name][index], mayLack);
      if (!isNumber) field.title = field.textContent;
      row.append(field);
    }
    if (!view.group) {
      const flow = found[index];
      row.tabIndex = 0;
      row.dataset.flow = flow;
      row.classList.toggle("chosen", chosen === flow);
      const open = () => choose(flow, `${news.columns.process[index]} ${news.columns.local[index]} to ${news.columns.peer[index]}`);
      row.addEventListener("click", open);
      row.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          open();
        }
      });
    }
    return row;
  });
  const before = news.offset;
  const after = Math.max(news.lines - news.offset - found.length, 0);
  $("rows").replaceChildren(space(before, columns.length), ...rows, space(after, columns.length));
  if (active !== undefined) {
    const again = $("rows").querySelector(`tr[data-flow="${CSS.escape(active)}"]`);
    if (again) again.focus({ preventScroll: true });
  }
}

function drawItems(id, texts) {
  $(id).replaceChildren(...(texts.length ? texts : ["none"]).map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
}

function drawListeners(listeners) {
  drawItems("listeners", listeners.map((row) => {
    const address = row.ip_version === 6 ? `[${row.local_address}]` : row.local_address;
    return `${address}:${row.local_port} of ${row.command || "?"} (pid ${row.pid}), room for ${whole(row.backlog_connections)}: ${whole(row.syns_refused)} SYNs and ${whole(row.acks_refused)} ACKs refused`;
  }));
}

// An interval on a scale that has 0 in its middle, with the limits that a statement names.
function interval(row) {
  const most = 1.1 * Math.max(Math.abs(row.low), Math.abs(row.high), Math.abs(row.limit));
  const percent_of = (value) => 50 + 50 * value / most;
  const bar = document.createElement("span");
  bar.className = "interval";
  bar.setAttribute("aria-hidden", "true");
  const part = (name, low, high) => {
    const one = document.createElement("span");
    one.className = name;
    one.style.left = `${percent_of(low)}%`;
    one.style.width = `${percent_of(high) - percent_of(low)}%`;
    bar.append(one);
  };
  part("limits", -Math.abs(row.limit), Math.abs(row.limit));
  part("zero", 0, 0);
  part("range", row.low, row.high);
  return bar;
}

const digits = (value, signDisplay = "exceptZero") => value.toLocaleString("en", { maximumSignificantDigits: 3, signDisplay });
function drawCommands(commands) {
  drawItems("commands", commands.map((command) =>
    command.pid ? `${command.command} (pid ${command.pid}) since ${clock(1000 * command.began_s)}: ${command.text}` : command.text));
  commands.forEach((command, index) => {
    if (!command.statements.length) return;
    const list = document.createElement("ul");
    list.append(...command.statements.map((row) => {
      const item = document.createElement("li");
      const hasInterval = row.low !== null && row.high !== null && row.limit !== null;
      const verdict = row.is_same === null ? "open" : row.is_same ? "same" : "different";
      const unit = row.unit ? ` ${row.unit}` : "";
      item.textContent = `${row.source}: ${verdict}` + (hasInterval ? `, ${digits(row.low)} to ${digits(row.high)}${unit}, held against ${digits(row.limit, "auto")}${unit}` : "");
      if (hasInterval) item.append(interval(row));
      return item;
    }));
    if (command.more_statements) {
      const rest = document.createElement("li");
      rest.textContent = `and ${whole(command.more_statements)} more`;
      list.append(rest);
    }
    $("commands").children[index].append(list);
  });
}

function drawRings(rings) {
  drawItems("rings", rings.flatMap((ring) => [
    ring.hooks === null ? ring.ring : `${ring.ring}: ${ring.hooks}; ${ring.policy} reader`,
    ...ring.readers.map((reader) => `${ring.ring}, pid ${reader.pid}, ${reader.filter}: ${whole(reader.matched)} of ${whole(reader.seen)} packets matched, ${whole(reader.dropped)} found no room`),
  ]));
}

function drawTable(id, rows, isNumber) {
  $(id).replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((text, at) => {
      const field = document.createElement("td");
      field.textContent = text;
      if (isNumber[at]) field.className = "number";
      return field;
    }));
    return row;
  }));
}

function drawPackets(packets) {
  $("packets").hidden = !packets;
  if (!packets) return;
  $("followed").textContent = `The programs were attached for ${packets.attached_s.toFixed(1)} of ${packets.wall_s.toFixed(1)} s; what follows is of that time, each time since the stage before. ` +
    `Seen ${whole(packets.seen)} packets = filtered ${whole(packets.filtered)} + thinned ${whole(packets.thinned)} + followed ${whole(packets.logged)} + lost ${whole(packets.lost)} + under way ${whole(packets.under_way)}. ` +
    `Cost: reader ${percent(packets.wall_s ? packets.reader_cpu_s / packets.wall_s : 0)}, programs ${nanoseconds(packets.hooks_ns)}.` +
    (packets.unnamed_drops ? ` The host dropped ${whole(packets.unnamed_drops)} packets for still other reasons.` : "");
  const drops = packets.drops.map((row) => [whole(row.packets), row.meaning ? `${row.reason}: ${row.meaning}` : row.reason, row.after.join(", ")]);
  drawTable("drops", drops.length ? drops : [["0", "none", ""]], [true, false, false]);
  const micro = (value) => value.toLocaleString("en", { maximumFractionDigits: 2 });
  drawTable("stages", packets.stages.map((row) => [row.path, row.stage, whole(row.packets), micro(row.median_us), micro(row.p99_us), ""]), [false, false, true, true, true, false]);
  drawHistograms(packets.stages);
}

// The lower edge of an octave of times.
const edge = (octave) => {
  const edge_ns = octave ? 8 * 2 ** (octave - 1) : 0;
  const [value, unit] = edge_ns < 1e3 ? [edge_ns, "ns"] : edge_ns < 1e6 ? [edge_ns / 1e3, "us"] : edge_ns < 1e9 ? [edge_ns / 1e6, "ms"] : [edge_ns / 1e9, "s"];
  return `${digits(value, "auto")} ${unit}`;
};

// All on one axis, so that stages can be compared: from the shortest time of any to the longest.
function drawHistograms(stages) {
  const first = Math.min(...stages.map((row) => row.octaves.findIndex((packets) => packets > 0)).filter((at) => at >= 0));
  const last = Math.max(...stages.map((row) => row.octaves.length));
  $("octaves").textContent = stages.length && Number.isFinite(first) ? `${edge(first)} to ${edge(last)}` : "times";
  stages.forEach((row, index) => {
    const most = Math.max(...row.octaves, 1);
    const bars = document.createElement("div");
    bars.className = "histogram";
    bars.setAttribute("aria-hidden", "true");
    for (let octave = first; octave < last; octave += 1) {
      const packets = row.octaves[octave] || 0;
      const bar = document.createElement("span");
      bar.style.height = packets ? `${Math.max(100 * packets / most, 6)}%` : "0";
      bar.title = `${edge(octave)} to ${edge(octave + 1)}: ${whole(packets)}`;
      bars.append(bar);
    }
    $("stages").children[index].lastElementChild.append(bars);
  });
}

// Curves.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLOURS = ["#0969da", "#d1690b"];
function chart(id, title, labels, height, isStepped = false) {
  const place = $(id);
  const times = (plot, splits) => splits.map((time) => clock(1000 * time));
  const axis = { stroke: () => colour("--quiet"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { stroke: () => colour("--line") } };
  const drawn = new uPlot({
    title, height, width: Math.max(place.clientWidth, 280), cursor: { drag: { x: true, y: false } },
    scales: { y: { range: (_, low, high) => [Math.min(low ?? 0, 0), (high ?? 0) > 0 ? high * 1.05 : 1] } },
    axes: [{ ...axis, values: times, space: 80 }, { ...axis, size: 60 }],
    series: [{ value: (_, s) => (s === null ? "-" : clock(1000 * s)) }, ...labels.map((label, index) => ({
      label, stroke: COLOURS[index], width: 1.5, spanGaps: false, points: { show: (plot) => plot.data[0].length < 60 },
      paths: isStepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
    }))],
  }, [[], ...labels.map(() => [])], place);
  new ResizeObserver(() => drawn.setSize({ width: Math.max(place.clientWidth, 280), height })).observe(place);
  return drawn;
}
let all = null;
let single = null;
let asked_ms = 0;
let isAsking = false;
async function more(news) {
  // The first frame, and after a gap, all times are asked for; else the newest time is added.
  if (isAsking) return;
  const times = all.data[0];
  const newest_s = times.length ? times[times.length - 1] : 0;
  const time_s = news.time_ms / 1000;
  try {
    isAsking = true;
    if (!times.length || time_s - newest_s > 5 || time_s < newest_s) {
      const total = await ask("api/curve");
      all.setData([total.time_s, total.acked_Mbps, total.received_Mbps]);
    } else if (time_s > newest_s) {
      const first_s = news.kept_ms[0] / 1000;
      const cut = times.findIndex((time) => time >= first_s);
      const add = (column, value) => [...column.slice(Math.max(cut, 0)), value];
      all.setData([add(times, time_s), add(all.data[1], news.now.acked_Mbps), add(all.data[2], news.now.received_Mbps)]);
    }
    if (chosen !== null && Date.now() - asked_ms > 900) await curves();
  } catch (error) {
    // The next frame says what is wrong.
    console.debug(error);
  } finally {
    isAsking = false;
  }
}

async function curves() {
  asked_ms = Date.now();
  const flow = chosen;
  const curve = await ask(`api/curve?flow=${flow}`);
  if (flow !== chosen) return;
  $("why").hidden = !curve.retransmitted_for;
  $("why").textContent = `Sent again: ${curve.retransmitted_for}`;
  if (!curve.time_s.length && !single) return;
  if (!single) {
    single = {
      rates: chart("rates", "Throughput, Mbit/s", ["acked", "received"], 190),
      window: chart("window", "Congestion window, segments", ["cwnd"], 190, true),
      rtt: chart("rtt", "Smoothed round-trip time, ms", ["rtt"], 190, true),
      retr: chart("retr", "Segments sent again per s", ["sent again"], 190),
    };
  }
  single.rates.setData([curve.time_s, curve.acked_Mbps, curve.received_Mbps]);
  single.window.setData([curve.time_s, curve.cwnd_segments]);
  single.rtt.setData([curve.time_s, curve.srtt_ms]);
  single.retr.setData([curve.time_s, curve.retransmitted_per_s]);
}

function choose(flow, name) {
  chosen = flow;
  $("one").hidden = false;
  $("name").textContent = `Flow ${flow}: ${name}`;
  for (const row of $("rows").querySelectorAll("tr[data-flow]")) row.classList.toggle("chosen", row.dataset.flow === String(flow));
  curves().catch((error) => say(error.message, true));
  $("name").scrollIntoView({ block: "nearest" });
}

// Time, marks, and what is saved.
function pauseTo(isPaused) {
  paused = isPaused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Go on" : "Pause";
  view.at_ms = paused && frame ? frame.time_ms : null;
  changed();
}
function drawMarks() {
  const { from, until } = marks;
  $("span").textContent = from === null && until === null ? "" : `${from === null ? "start" : clock(from)} to ${until === null ? "now" : clock(until)}`;
}
const shownTime = () => (frame ? frame.time_ms : null);

$("pause").addEventListener("click", () => pauseTo(!paused));
$("when").addEventListener("input", () => {
  const slider = $("when");
  const isNow = Number(slider.value) >= 0 || !frame;
  paused = !isNow;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Go on" : "Pause";
  view.at_ms = isNow ? null : frame.kept_ms[1] + 1000 * Number(slider.value) + 1;
  changed();
});
$("from").addEventListener("click", () => { marks.from = shownTime(); if (marks.until !== null && marks.until < marks.from) marks.until = null; drawMarks(); });
$("until").addEventListener("click", () => { marks.until = shownTime(); if (marks.from !== null && marks.from > marks.until) marks.from = null; drawMarks(); });
$("save").addEventListener("click", async () => {
  $("save").disabled = true;
  $("saved").textContent = "saving";
  try {
    const [first, last] = frame.kept_ms;
    const body = JSON.stringify({ from_ms: marks.from ?? first, until_ms: marks.until ?? last });
    const answer = await ask("api/save", { method: "POST", body, headers: { "Content-Type": "application/json" } });
    savedKey = answer.key;
    $("saved").textContent = `saved in ${answer.path}${answer.problem ? `; ${answer.problem}` : ""}`;
    $("report").hidden = false;
  } catch (error) {
    $("saved").textContent = `not saved: ${error.message}`;
  } finally {
    $("save").disabled = false;
  }
});
$("report").addEventListener("click", async () => {
  $("report").disabled = true;
  const before = $("saved").textContent;
  $("saved").textContent = "making the report";
  try {
    const answer = await ask("api/report", { method: "POST", body: JSON.stringify({ key: savedKey }), headers: { "Content-Type": "application/json" } });
    window.open(answer.url, "_blank", "noopener");
    $("saved").textContent = before;
  } catch (error) {
    $("saved").textContent = `no report: ${error.message}`;
  } finally {
    $("report").disabled = false;
  }
});
let typing = null;
$("words").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    view.words = $("words").value;
    view.offset = 0;
    $("scroll").scrollTop = 0;
    changed();
  }, 150);
});
$("group").addEventListener("change", () => {
  view.group = $("group").value;
  view.sort = "acked_Mbps";
  view.descending = true;
  view.offset = 0;
  $("scroll").scrollTop = 0;
  heads();
  changed();
});
let scrolling = null;
$("scroll").addEventListener("scroll", () => {
  clearTimeout(scrolling);
  scrolling = setTimeout(() => {
    const first = Math.floor($("scroll").scrollTop / LINE_PX);
    const offset = Math.max(first - 20, 0);
    const count = Math.min(Math.ceil($("scroll").clientHeight / LINE_PX) + 40, 500);
    if (offset === view.offset && count === view.count) return;
    view.offset = offset;
    view.count = count;
    changed();
  }, 60);
});
$("close").addEventListener("click", () => {
  chosen = null;
  $("one").hidden = true;
  for (const row of $("rows").querySelectorAll("tr.chosen")) row.classList.remove("chosen");
});

heads();
all = chart("all", "", ["acked Mbit/s", "received Mbit/s"], 130);
follow();
