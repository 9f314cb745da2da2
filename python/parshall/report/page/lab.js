// Draws every figure of a study.
"use strict";
(() => {
  async function draw(element) {
    const specification = JSON.parse(document.getElementById(element.dataset.specification).textContent);
    const narrow = element.clientWidth < 700;
    if (specification.width) specification.width = "container";
    if (specification.concat && narrow) {
      specification.columns = 1;
      // Room for the axis and its title.
      for (const panel of specification.concat) panel.width = element.clientWidth - 90;
    }
    await window.vegaEmbed(element, specification, {
      renderer: element.dataset.renderer,
      actions: { export: true, source: false, compiled: false, editor: false },
    });
  }
  const charts = [...document.querySelectorAll(".chart")];
  Promise.all(charts.map(draw)).then(() => {
    document.documentElement.dataset.figures = String(charts.length);
  });
})();
