// A curve of goodput, and of what the links could carry, over the last minutes.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600;
const HEIGHT = 120;
const SPAN_S = 300;

/** Gigabits a second, with three significant digits. */
export function rate(gbps) {
  for (const [scale, unit] of [[1, "Gb/s"], [1e3, "Mb/s"], [1e6, "kb/s"]]) {
    if (gbps * scale >= 1) return `${Number((gbps * scale).toPrecision(3))} ${unit}`;
  }
  return `${Number((gbps * 1e9).toPrecision(3))} b/s`;
}

/** A round number somewhat above a value, so that no curve lies on the edge. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 1.2, 1.5, 2, 3, 4, 5, 6, 8, 10, 12].find((step) => step * power > 1.04 * value);
}

function path(points, column, most, now) {
  let drawn = "";
  let pen = "M";
  for (const point of points) {
    if (point[column] === null) {
      pen = "M";
      continue;
    }
    const x = WIDTH * (1 - (now - point[0]) / SPAN_S);
    const y = HEIGHT * (1 - point[column] / most);
    drawn += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    // A single point has a length as well, so that it is seen.
    if (pen === "M") drawn += `h0.01`;
    pen = "L";
  }
  return drawn;
}

/** A chart: its element, and a function that draws points [time_s, goodput, optimum]. */
export function makeChart() {
  const element = document.createElement("div");
  element.className = "chart";
  const scale = document.createElement("div");
  scale.className = "scale";
  const [top, bottom] = [document.createElement("span"), document.createElement("span")];
  bottom.textContent = "0";
  scale.append(top, bottom);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const [optimum, goodput] = ["optimum", "goodput"].map((name) => {
    const line = document.createElementNS(SVG, "path");
    line.setAttribute("class", name);
    svg.append(line);
    return line;
  });
  const times = document.createElement("div");
  times.className = "times";
  for (const text of [`${SPAN_S / 60} minutes ago`, "now"]) {
    const label = document.createElement("span");
    label.textContent = text;
    times.append(label);
  }
  element.append(scale, svg, times);

  function draw(points, now) {
    const shown = points.filter((point) => point[0] >= now - SPAN_S);
    const known = shown.map((point) => point[1]).filter((value) => value !== null);
    const optima = shown.map((point) => point[2]).filter((value) => value !== null);
    const most = ceiling(Math.max(1e-9, ...known, ...optima));
    top.textContent = rate(most);
    goodput.setAttribute("d", path(shown, 1, most, now));
    optimum.setAttribute("d", path(shown, 2, most, now));
    const least = known.length ? rate(Math.min(...known)) : "";
    const said = known.length
      ? `now ${rate(known[known.length - 1])}, from ${least} to ${rate(Math.max(...known))}`
      : "nothing reduced yet";
    const label = `Goodput of the last ${SPAN_S / 60} minutes: ${said}`;
    if (svg.getAttribute("aria-label") !== label) svg.setAttribute("aria-label", label);
    return optima.length > 0;
  }
  return { element, draw };
}
