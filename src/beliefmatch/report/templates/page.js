"use strict";
(() => {
  const shown = new Map();
  function update() {
    for (const element of document.querySelectorAll("[data-model]")) {
      const off = shown.get(element.dataset.model) === false;
      if (element instanceof SVGElement) element.style.display = off ? "none" : "";
      else element.hidden = off;
    }
  }
  for (const box of document.querySelectorAll("input[data-toggles]")) {
    const apply = () => { shown.set(box.dataset.toggles, box.checked); update(); };
    box.addEventListener("change", apply);
    apply();  // browsers keep the state of a reloaded page
  }
  for (const radio of document.querySelectorAll("input[name=theme]")) {
    const apply = () => { if (radio.checked) document.documentElement.dataset.theme = radio.value; };
    radio.addEventListener("change", apply);
    apply();
  }
  // A link into a folded section opens it; paper shows everything.
  const open = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const section = target && target.closest("details");
    if (section) section.open = true;
  };
  addEventListener("hashchange", open);
  open();
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details.section:not([open])")];
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of folded) one.open = false; });
  document.documentElement.dataset.ready = "true";
})();
