"use strict";
// Draws the plots of the page, in its colours, and again when the page turns dark or light.
(function () {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 40rem)");
  const touch = matchMedia("(pointer: coarse)");
  const darker = JSON.parse(document.getElementById("dark").textContent);

  function recolored(value) {
    if (Array.isArray(value)) return value.map(recolored);
    if (value && typeof value === "object") {
      const copy = {};
      for (const key of Object.keys(value)) copy[key] = recolored(value[key]);
      return copy;
    }
    return typeof value === "string" && value in darker ? darker[value] : value;
  }

  function themed(layout) {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.font = { family: getComputedStyle(document.body).fontFamily, color: color("--text") };
    layout.font.size = narrow.matches ? 11 : 13;
    layout.hoverlabel = { bgcolor: color("--page"), font: { color: color("--text") } };
    for (const name of Object.keys(layout)) {
      if (!/^[xy]axis/.test(name)) continue;
      layout[name].gridcolor = layout[name].linecolor = color("--rule");
      layout[name].tickcolor = color("--rule");
      layout[name].ticks = "outside";
    }
    // A finger scrolls the page instead of zooming the plot.
    layout.dragmode = touch.matches ? false : "zoom";
    return layout;
  }

  // Lines of at most so many characters, where spaces allow.
  function wrapped(text, most) {
    const lines = [""];
    for (const word of String(text).split(" ")) {
      const line = lines[lines.length - 1];
      if (line && line.length + word.length >= most) lines.push(word);
      else lines[lines.length - 1] = line ? line + " " + word : word;
    }
    return lines.join("<br>");
  }

  // On a phone, long names would leave no room for the bars, and an axis's title would be wider
  // than the axis.
  function narrowed(data, layout) {
    for (const name of Object.keys(layout)) {
      if (!/^[xy]axis/.test(name)) continue;
      const axis = layout[name];
      if (axis.title && axis.title.text) axis.title.text = wrapped(axis.title.text, 20);
      if (name[0] !== "y" || axis.type !== "category") continue;
      const names = [...new Set(data.flatMap((trace) => trace.y || []))];
      axis.tickvals = names;
      axis.ticktext = names.map((text) => wrapped(text, 20));
      axis.tickfont = { size: 10 };
    }
    return layout;
  }

  function draw() {
    for (const script of document.querySelectorAll("script[data-plot]")) {
      const plot = JSON.parse(script.textContent);
      const data = dark.matches ? recolored(plot.data) : plot.data;
      const layout = themed(dark.matches ? recolored(plot.layout) : plot.layout);
      if (narrow.matches) narrowed(data, layout);
      Plotly.react(script.dataset.plot, data, layout, {
        responsive: true,
        displaylogo: false,
        displayModeBar: touch.matches ? false : "hover",
        modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      });
    }
  }

  draw();
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
})();
