// What the pages share: every figure fits its place, and has colours for light or dark pages.
"use strict";
const parshallFigures = (() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  // Paper is white.
  let is_printing = false;
  const ruler = document.createElement("canvas").getContext("2d");
  // Below this width there is no room for the menu, nor for legends beside figures.
  const NARROW_PX = 600;
  // Room for an axis with its title, and for the symbol of a legend's entry.
  const AXIS_PX = 100;
  const SYMBOL_PX = 36;
  const LEGEND_LEFT_PX = 76;
  // Titles have letters of 15 px, in bold.
  const TITLE_WIDTH = 1.45;
  const PARTS = ["layer", "concat", "hconcat", "vconcat"];

  function width(texts) {
    ruler.font = "12px Helvetica, Arial, sans-serif";
    return Math.max(0, ...texts.map((text) => ruler.measureText(text).width));
  }

  // Returns lines of at most so many pixels.
  function wrapped(text, room) {
    const lines = [];
    for (const word of [text].flat().join(" ").split(" ")) {
      const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
      if (lines.length && width([longer]) * TITLE_WIDTH < room) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    return lines;
  }

  function recoloured(value, key) {
    if (!dark.matches || is_printing || key === "data" || key === "datasets") return value;
    if (typeof value === "string") return DARK[value] ?? value;
    if (Array.isArray(value)) return value.map((each) => recoloured(each));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, recoloured(each, name)]));
  }

  function fitLegends(view, config, room) {
    for (const channel of Object.values(view.encoding ?? {})) {
      const legend = channel?.legend;
      if (!legend) continue;
      if (room < NARROW_PX && legend.orient !== "bottom") legend.orient = "top";
      if (legend.orient !== "top" && legend.orient !== "bottom") continue;
      const names = (legend.values ?? channel.scale?.domain ?? []).map(String);
      if (!names.length) continue;
      const most = legend.columns ?? config.legend?.columns ?? 4;
      legend.columns = Math.max(1, Math.min(most, Math.floor(room / (width(names) + SYMBOL_PX))));
      legend.labelLimit = Math.max(60, room - SYMBOL_PX);
      legend.titleLimit = room;
      if (Array.isArray(legend.title)) legend.title = legend.title.join(" ");
    }
    for (const part of PARTS) for (const each of view[part] ?? []) fitLegends(each, config, room);
  }

  // The width of a view whose panels stand beside each other, or below.
  function natural(view) {
    const beside = view.hconcat ?? view.concat?.slice(0, view.columns ?? view.concat.length);
    if (beside) return beside.reduce((sum, each) => sum + natural(each), 0);
    if (view.vconcat) return Math.max(...view.vconcat.map(natural));
    return (typeof view.width === "number" ? view.width : 0) + AXIS_PX;
  }

  function fitPanels(view, room) {
    if ((view.hconcat || view.concat) && natural(view) > room) {
      view.vconcat = view.hconcat ?? view.concat;
      delete view.hconcat;
      delete view.concat;
      delete view.columns;
    }
    for (const part of PARTS.slice(1)) for (const each of view[part] ?? []) fitPanels(each, room);
    if (typeof view.width === "number") view.width = Math.max(120, Math.min(view.width, room - AXIS_PX));
    const title = view.title?.text ?? view.title;
    if (title && title.length) view.title = { ...(view.title.text ? view.title : {}), text: wrapped(title, room) };
  }

  function narrowed(view, excess) {
    for (const part of PARTS.slice(1)) for (const each of view[part] ?? []) narrowed(each, excess);
    if (typeof view.width === "number") view.width = Math.max(120, view.width - excess);
  }

  async function embedded(element, specification, is_narrow) {
    element.classList.toggle("narrow", is_narrow);
    const drawn = await window.vegaEmbed(element, recoloured(specification), {
      renderer: element.dataset.renderer,
      actions: is_narrow ? false : { export: true, source: false, compiled: false, editor: false },
    });
    // It has a picture only.
    element.querySelector("summary")?.setAttribute("aria-label", "Save this figure");
    return drawn;
  }

  async function draw(element) {
    const specification = JSON.parse(document.getElementById(element.dataset.specification).textContent);
    const is_narrow = element.clientWidth < NARROW_PX;
    // A drawing with letters of a fixed size would not be readable when it is smaller.
    const is_fixed = "fixed" in element.dataset;
    const room = element.clientWidth - (is_narrow ? 0 : 40);
    if (!is_fixed) {
      if (specification.width) specification.width = "container";
      else fitPanels(specification, room);
      fitLegends(specification, specification.config ?? {}, room - LEGEND_LEFT_PX);
    }
    const { view } = await embedded(element, specification, is_narrow);
    const drawing = element.querySelector("svg.marks, canvas.marks");
    const excess = (drawing?.getBoundingClientRect().width ?? 0) - room;
    if (is_fixed || excess <= 1 || specification.width) return view;
    view.finalize();
    narrowed(specification, Math.ceil(excess));
    return (await embedded(element, specification, is_narrow)).view;
  }

  // Draws all figures, and again when the page becomes dark or light; then calls a function with elements and views.
  async function drawAll(drawn = () => {}) {
    const elements = [...document.querySelectorAll(".chart")];
    const swatches = [...document.querySelectorAll(".swatch")].map((each) => [each, each.dataset.colour]);
    async function all() {
      for (const [swatch, colour] of swatches) swatch.style.background = recoloured(colour);
      const views = await Promise.all(elements.map(draw));
      drawn(elements, views);
      document.documentElement.dataset.figures = String(views.length);
    }
    dark.addEventListener("change", all);
    for (const [event, starts] of [["beforeprint", true], ["afterprint", false]]) {
      window.addEventListener(event, () => {
        is_printing = starts;
        if (dark.matches) all();
      });
    }
    await all();
  }

  return { drawAll };
})();
