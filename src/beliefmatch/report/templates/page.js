"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const shown = new Array(data.models).fill(true);
  const choices = {};
  const drawn = [];

  const narrow = matchMedia("(max-width: 640px), (pointer: coarse)").matches;
  const config = {
    responsive: true,
    displaylogo: false,
    // A finger that scrolls the page must not zoom a plot.
    scrollZoom: false,
    displayModeBar: narrow ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d", "toggleSpikelines"],
  };

  // Does an element or trace belong to what the reader asked for?
  function isWanted(marks) {
    if (marks.model !== undefined && !shown[Number(marks.model)]) return false;
    return Object.keys(choices).every((name) => marks[name] === undefined || marks[name] === choices[name]);
  }

  function visibilities(plot) {
    return plot.data.map((trace) => isWanted(trace.meta || {}));
  }

  // Scaling to the paper's width needs a viewBox, which plotly leaves out.
  function fitForPrint(element) {
    for (const svg of element.querySelectorAll("svg.main-svg")) {
      const width = svg.getAttribute("width"), height = svg.getAttribute("height");
      if (width && height) svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    }
  }

  function draw(plot) {
    const element = document.getElementById(`plot-${plot.id}`);
    const wanted = visibilities(plot);
    const traces = plot.data.map((trace, i) => ({ ...trace, visible: wanted[i] }));
    const layout = { ...plot.layout, dragmode: narrow ? false : "zoom" };
    if (layout.height) element.style.height = `${layout.height}px`;
    delete layout.height;
    return Plotly.newPlot(element, traces, layout, config).then(() => {
      drawn.push(plot);
      fitForPrint(element);
      element.on("plotly_afterplot", () => fitForPrint(element));
    });
  }

  function update() {
    for (const element of document.querySelectorAll("[data-model], [data-score], [data-bins]")) {
      element.hidden = !isWanted(element.dataset);
    }
    for (const plot of drawn) {
      const element = document.getElementById(`plot-${plot.id}`);
      if (plot.alts[choices.score]) element.setAttribute("aria-label", plot.alts[choices.score]);
      Plotly.restyle(element, { visible: visibilities(plot) });
      if (element.clientWidth) Plotly.Plots.resize(element);
    }
  }

  for (const select of document.querySelectorAll("select[data-choice]")) {
    choices[select.dataset.choice] = select.value;
    select.addEventListener("change", () => {
      choices[select.dataset.choice] = select.value;
      update();
    });
  }
  for (const box of document.querySelectorAll("input[data-toggles]")) {
    shown[Number(box.dataset.toggles)] = box.checked;  // browsers keep the state of a reloaded page
    box.addEventListener("change", () => {
      shown[Number(box.dataset.toggles)] = box.checked;
      update();
    });
  }
  for (const radio of document.querySelectorAll("input[name=theme]")) {
    const apply = () => { if (radio.checked) document.documentElement.dataset.theme = radio.value; };
    radio.addEventListener("change", apply);
    apply();
  }

  update();
  // One plot at a time, so that the page answers while it is drawn.
  data.plots
    .reduce((before, plot) => before.then(() => draw(plot)).then(() => new Promise((go) => setTimeout(go))), Promise.resolve())
    .then(() => { update(); document.documentElement.dataset.ready = "true"; });
})();
