// Draws every figure. All figures share the zoom of the time axis; those of one log share the selected
// flows.
"use strict";
(() => {
  const drawn = [];
  let sharing = false;

  // Applies a change to the other figures; the changes that they then signal are ignored.
  async function share(source, change) {
    if (sharing) return;
    sharing = true;
    try {
      await Promise.all(drawn.filter((other) => other !== source).map(change));
    } finally {
      sharing = false;
    }
  }

  function listen(figure) {
    figure.view.addSignalListener("zoom_time_s", (_, range) => {
      share(figure, (other) => other.view.signal("zoom_time_s", range).runAsync());
    });
    figure.view.addDataListener("pick_store", (_, picked) => {
      const copy = picked.map((entry) => ({ ...entry }));
      share(figure, (other) => other.log === figure.log && other.view.data("pick_store", copy).runAsync());
    });
  }

  async function draw(element) {
    const specification = JSON.parse(document.getElementById(element.dataset.specification).textContent);
    specification.width = "container";
    // Fit the legend to the page: a name takes some 220 pixels.
    specification.config.legend.columns = Math.max(1, Math.min(4, Math.floor(element.clientWidth / 220)));
    const { view } = await window.vegaEmbed(element, specification, {
      renderer: element.dataset.renderer,
      actions: { export: true, source: false, compiled: false, editor: false },
    });
    const figure = { view, log: element.dataset.log };
    drawn.push(figure);
    listen(figure);
  }

  Promise.all([...document.querySelectorAll(".chart")].map(draw)).then(() => {
    document.documentElement.dataset.figures = String(drawn.length);
    window.parshallFigures = drawn;
  });
})();
