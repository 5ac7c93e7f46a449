// Drawings: points on a circle or a sphere, and coordinates side by side. SVG, made element by element.

const SVG = "http://www.w3.org/2000/svg";

function draw(name, about, ...inside) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(about)) element.setAttribute(key, value);
  element.append(...inside);
  return element;
}

function canvas(width, height, said, ...inside) {
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said }, ...inside);
}

const near = value => value.toFixed(1);
// Many points as one path: a dot is a line of no length with round ends.
const dots = places => places.map(([x, y]) => `M${near(x)} ${near(y)}h0`).join("");

function mark(x, y, kind) {
  return draw("circle", { cx: near(x), cy: near(y), r: kind === "truth" ? 7 : 6, class: kind });
}

// Noise that is added may lead off the sphere: its direction is drawn.
const unit = point => {
  const length = Math.hypot(...point) || 1;
  return point.map(value => value / length);
};

const SIZE = 320, MIDDLE = SIZE / 2, RADIUS = 140;

export function circle(points, truth, sent) {
  // further out by a little, so that many at one place can be told from few
  const place = ([x, y], i) => {
    const out = RADIUS * (1 + (i === undefined ? 0 : 0.012 * (i % 7 - 3)));
    const length = Math.hypot(x, y) || 1;
    return [MIDDLE + out * x / length, MIDDLE - out * y / length];
  };
  const parts = [draw("circle", { cx: MIDDLE, cy: MIDDLE, r: RADIUS, class: "axis" }),
    draw("path", { d: dots(points.map((p, i) => place(p, i))), class: "cloud" }), mark(...place(truth), "truth")];
  if (sent) parts.push(mark(...place(sent), "sent"));
  return canvas(SIZE, SIZE, `A circle with ${points.length} points that might leave, and the true one`, ...parts);
}

export function sphere(points, truth, sent, turn) {
  const [a, b] = [turn * Math.PI / 180, 0.42];
  const turned = ([x, y, z]) => {
    const [u, w] = [x * Math.cos(a) + z * Math.sin(a), z * Math.cos(a) - x * Math.sin(a)];
    return [u, y * Math.cos(b) - w * Math.sin(b), y * Math.sin(b) + w * Math.cos(b)];
  };
  const flat = ([x, y]) => [MIDDLE + RADIUS * x, MIDDLE - RADIUS * y];
  const all = points.map(unit).map(turned);
  const rings = [];
  for (const [level, upright] of [[0, false], [0, true]]) {
    const ring = Array.from({ length: 73 }, (_, i) => {
      const t = i * Math.PI / 36;
      return flat(turned(upright ? [Math.cos(t), Math.sin(t), level] : [Math.cos(t), level, Math.sin(t)]));
    });
    rings.push(draw("path", { d: "M" + ring.map(p => p.map(near).join(" ")).join("L"), class: "grid" }));
  }
  const parts = [draw("circle", { cx: MIDDLE, cy: MIDDLE, r: RADIUS, class: "axis" }), ...rings,
    draw("path", { d: dots(all.filter(p => p[2] < 0).map(flat)), class: "cloud back" }),
    draw("path", { d: dots(all.filter(p => p[2] >= 0).map(flat)), class: "cloud" })];
  for (const [point, kind] of [[truth, "truth"], [sent, "sent"]]) {
    if (!point) continue;
    const place = turned(unit(point)), dot = mark(...flat(place), kind);
    if (place[2] < 0) dot.setAttribute("opacity", "0.5");
    parts.push(dot);
  }
  return canvas(SIZE, SIZE, `A sphere with ${points.length} points that might leave, and the true one`, ...parts);
}

export function strips(points, truth, sent) {
  const width = 520, height = 230, left = 34, bottom = 24, n = truth.length, most = 64;
  const shown = Math.min(n, most), step = (width - left - 6) / shown;
  const far = Math.ceil(10 * Math.max(1, ...points.flat().concat(truth, sent || []).map(Math.abs)) - 1e-6) / 10;
  const x = i => left + step * (i + 0.5), y = v => 8 + (height - bottom - 8) * (1 - v / far) / 2;
  const parts = [];
  for (const v of [-far, 0, far]) {
    parts.push(draw("path", { d: `M${left} ${y(v)}H${width - 6}`, class: v ? "grid" : "axis" }),
      draw("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, v ? String(v) : "0"));
  }
  const jitter = i => (((i * 7919) % 101) / 101 - 0.5) * step * 0.55;
  const places = [];
  points.forEach((p, row) => { for (let i = 0; i < shown; i++) places.push([x(i) + jitter(row), y(p[i])]); });
  const cloud = draw("path", { d: dots(places), class: "cloud" });
  cloud.style.strokeWidth = shown > 20 ? "1.6" : "2.6";
  parts.push(cloud);
  for (let i = 0; i < shown; i++) {
    const size = Math.min(5.5, step * 0.42);
    const ring = draw("circle", { cx: near(x(i)), cy: near(y(truth[i])), r: near(size), class: "truth" });
    parts.push(ring);
    if (sent) parts.push(draw("circle", { cx: near(x(i)), cy: near(y(sent[i])), r: near(size), class: "sent" }));
    if (shown <= 20) parts.push(draw("text", { x: x(i), y: height - 6, "text-anchor": "middle" }, String(i + 1)));
  }
  if (shown > 20) parts.push(draw("text", { x: left, y: height - 6 }, `coordinates 1 to ${shown}${n > shown ? ` of ${n}` : ""}`));
  return canvas(width, height, `${shown} coordinates: what might leave, and the true values`, ...parts);
}
