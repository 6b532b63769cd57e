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
    // These and no others: plotly has one that sends the plot away.
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };

  // Does an element or trace belong to what the reader asked for?
  function isWanted(marks) {
    if (marks.model !== undefined && !shown[Number(marks.model)]) return false;
    return Object.keys(choices).every((name) => marks[name] === undefined || marks[name] === choices[name]);
  }

  function visibilities(plot) {
    return plot.data.map((trace) => isWanted(trace.meta || {}));
  }

  // Scaling to the paper's width needs a viewBox, which plotly leaves out. The buttons serve a mouse;
  // dozens of them would stand between a keyboard and the next section.
  function finish(element) {
    for (const button of element.querySelectorAll(".modebar-btn")) button.tabIndex = -1;
    for (const svg of element.querySelectorAll("svg.main-svg")) {
      const width = svg.getAttribute("width"), height = svg.getAttribute("height");
      if (width && height) svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    }
  }

  function draw(plot) {
    const element = document.getElementById(`plot-${plot.id}`);
    const wanted = visibilities(plot);
    plot.drawn = String(wanted);
    const traces = plot.data.map((trace, i) => ({ ...trace, visible: wanted[i] }));
    const layout = { ...plot.layout, dragmode: narrow ? false : "zoom" };
    if (layout.height) element.style.height = `${layout.height}px`;
    delete layout.height;
    return Plotly.newPlot(element, traces, layout, config).then(() => {
      drawn.push(plot);
      finish(element);
      element.on("plotly_afterplot", () => finish(element));
    });
  }

  function update() {
    for (const element of document.querySelectorAll("[data-model], [data-score], [data-bins]")) {
      element.hidden = !isWanted(element.dataset);
    }
    for (const plot of drawn) {
      const element = document.getElementById(`plot-${plot.id}`);
      if (Object.hasOwn(plot.alts, choices.score)) element.setAttribute("aria-label", plot.alts[choices.score]);
      const visible = visibilities(plot);
      if (String(visible) !== plot.drawn) Plotly.restyle(element, { visible });
      plot.drawn = String(visible);
      // A plot that moved in its grid, or was drawn while hidden, has another width than its place.
      if (element.clientWidth && element.clientWidth !== element._fullLayout.width) Plotly.Plots.resize(element);
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
