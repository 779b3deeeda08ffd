"use strict";
// Draws a chart when it comes into view, follows the system's light or dark, hides and shows runs.
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const boxes = [...document.querySelectorAll(".chart")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const views = new Map();
  let shown = null;

  function config(width) {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    const ink = of("--ink"), soft = of("--soft"), line = of("--line");
    return {
      background: "transparent",
      font: getComputedStyle(document.body).fontFamily,
      axis: { labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line,
              labelFontSize: 12, titleFontSize: 12, labelOverlap: "greedy" },
      legend: { labelColor: ink, titleColor: soft, labelFontSize: 12,
                columns: Math.max(1, Math.floor(width / 190)) },
      view: { stroke: null },
      rule: { color: soft },
    };
  }

  async function draw(box) {
    const name = box.dataset.chart;
    views.get(name)?.finalize();
    try {
      const result = await vegaEmbed(box, { ...charts[name], title: undefined }, {
        actions: false, renderer: box.dataset.renderer || "svg", ast: true, config: config(box.clientWidth),
        logLevel: 1, // errors: a chart with all runs hidden has no extent, and that is all right
        tooltip: { theme: dark.matches ? "dark" : "light" },
      });
      views.set(name, result);
      if (shown) toggle(result.view);
      box.dataset.drawn = "yes";
    } catch (error) {
      box.textContent = "This chart could not be drawn.";
      console.error(name, error);
    }
  }

  function toggle(view) {
    if (view.getState().signals && "shown" in view.getState().signals) {
      view.signal("shown", shown).runAsync();
    }
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !entry.target.dataset.drawn) {
        entry.target.dataset.drawn = "soon";
        draw(entry.target);
      }
    }
  }, { rootMargin: "300px" });
  boxes.forEach((box) => seen.observe(box));
  dark.addEventListener("change", () => {
    boxes.filter((box) => box.dataset.drawn === "yes").forEach(draw);
  });

  const switches = [...document.querySelectorAll("input[data-run]")];
  function choose() {
    shown = switches.filter((each) => each.checked).map((each) => each.dataset.run);
    for (const result of views.values()) toggle(result.view);
  }
  switches.forEach((each) => each.addEventListener("change", choose));
  for (const button of document.querySelectorAll("button[data-show]")) {
    button.addEventListener("click", () => {
      switches.forEach((each) => { each.checked = button.dataset.show === "all"; });
      choose();
    });
  }

  // A curve can be read by keyboard: left and right walk along the rounds.
  for (const box of boxes.filter((each) => each.dataset.curve)) {
    const values = charts[box.dataset.chart].data.values;
    const names = Object.fromEntries(switches.map((each) => [each.dataset.run, each.dataset.name]));
    const rounds = [...new Set(values.map((each) => each.round))].sort((a, b) => a - b);
    const readout = document.getElementById(box.getAttribute("aria-describedby"));
    let at = rounds.length;
    box.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -rounds.length, End: rounds.length }[event.key];
      if (!step || !rounds.length) return;
      event.preventDefault();
      at = Math.min(rounds.length - 1, Math.max(0, at + step));
      const there = values.filter(
        (each) => each.round === rounds[at] && (!shown || shown.includes(each.run)));
      readout.textContent = `round ${rounds[at]}: ` +
        there.map((each) => `${names[each.run] || ""} ${each.value.toFixed(4)}`).join("; ");
    });
  }
})();
