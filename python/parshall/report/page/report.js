// Draws every figure. All figures share the zoom of the time axis; those of one log share the selected
// flows.
"use strict";
(() => {
  let drawn = [];
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

  parshallFigures.drawAll((elements, views) => {
    const all = views.map((view, number) => ({ view, log: elements[number].dataset.log }));
    // Those of several logs have no flows, and a time of their own.
    drawn = all.filter((each) => each.log !== undefined);
    drawn.forEach(listen);
    window.parshallFigures = all;
  });
})();
