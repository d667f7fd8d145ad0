// The two level meters: one line from edge to edge, and between its halves the button. What you say
// swells the left half, what the voice says the right; both travel outwards from the middle.

const TICK_MS = 32;
const PIXELS_PER_TICK = 4;
// A small machine may be running the model as well: there, some twenty pictures a second.
const PICTURE_MS = navigator.hardwareConcurrency > 4 ? 0 : 40;
const FLOOR_DB = -52;
const CEILING_DB = -8;
const ATTACK = 0.66;
const RELEASE = 0.36;
const SHOULDER = 40; // pixels over which the swelling rises beside the button
const STRANDS = [
  [1, 0.55],
  [0.78, 0.5],
  [0.58, 0.6],
  [0.38, 0.8],
];

/** A level (RMS, 0 to 1) as a height from 0 to 1: decibels, the loud half stretched. */
export function heightOf(level) {
  if (level <= 0) return 0;
  const db = 20 * Math.log10(level);
  return Math.max(0, Math.min(1, (db - FLOOR_DB) / (CEILING_DB - FLOOR_DB))) ** 1.6;
}

class Side {
  aim = 0;
  height = 0;
  trail = [];

  tick(room) {
    this.height += (this.aim - this.height) * (this.aim > this.height ? ATTACK : RELEASE);
    if (this.height < 0.002) this.height = 0;
    this.trail.unshift(this.height);
    if (this.trail.length > room) this.trail.length = room;
  }

  get still() {
    return this.aim === 0 && this.trail.every((height) => height === 0);
  }
}

export class Horizon {
  you = new Side();
  voice = new Side();
  #canvas;
  #button;
  #pen;
  #last = 0;
  #running = false;
  #colours = {};
  #calm = matchMedia("(prefers-reduced-motion: reduce)");
  #width = 0;
  #height = 0;

  constructor(canvas, button) {
    this.#canvas = canvas;
    this.#button = button;
    this.#pen = canvas.getContext("2d");
    const redraw = () => {
      this.#measure();
      this.#draw(0);
    };
    new ResizeObserver(redraw).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    this.#calm.addEventListener("change", redraw);
    redraw();
  }

  /** The level (RMS, 0 to 1) of "you" or "voice" now. */
  level(side, level) {
    this[side].aim = heightOf(level);
    if (this[side].aim > 0) this.#run();
  }

  #measure() {
    const style = getComputedStyle(this.#canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.#colours = { you: colour("--ink"), voice: colour("--sun"), line: colour("--horizon") };
    const ratio = devicePixelRatio || 1;
    this.#width = this.#canvas.clientWidth;
    this.#height = this.#canvas.clientHeight;
    this.#canvas.width = Math.round(this.#width * ratio);
    this.#canvas.height = Math.round(this.#height * ratio);
    this.#pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  #run() {
    if (this.#running) return;
    this.#running = true;
    this.#last = performance.now();
    this.#again();
  }

  #again() {
    const draw = () => requestAnimationFrame((now) => this.#frame(now));
    if (PICTURE_MS === 0) draw();
    else setTimeout(draw, PICTURE_MS);
  }

  #frame(now) {
    const room = Math.ceil(this.#width / 2 / PIXELS_PER_TICK);
    if (now - this.#last > 500) this.#last = now - TICK_MS; // the page was hidden
    while (now - this.#last >= TICK_MS) {
      this.you.tick(room);
      this.voice.tick(room);
      this.#last += TICK_MS;
    }
    this.#draw((now - this.#last) / TICK_MS);
    this.#button.style.setProperty("--you", this.you.height.toFixed(2));
    this.#button.style.setProperty("--voice", this.voice.height.toFixed(2));
    this.#running = !(this.you.still && this.voice.still);
    if (this.#running) this.#again();
  }

  #draw(fraction) {
    const pen = this.#pen;
    pen.clearRect(0, 0, this.#width, this.#height);
    const middle = this.#height / 2;
    const radius = this.#button.offsetWidth / 2;
    this.#drawLine(middle);
    this.#drawSide(this.you, -1, this.#colours.you, radius, fraction);
    this.#drawSide(this.voice, 1, this.#colours.voice, radius, fraction);
  }

  #drawLine(middle) {
    const pen = this.#pen;
    pen.strokeStyle = this.#fading(this.#colours.line);
    pen.lineWidth = 1.25;
    pen.beginPath();
    pen.moveTo(0, middle);
    pen.lineTo(this.#width, middle);
    pen.stroke();
  }

  /** A colour (#rrggbb) that vanishes towards both edges. */
  #fading(colour) {
    const fade = this.#pen.createLinearGradient(0, 0, this.#width, 0);
    fade.addColorStop(0, `${colour}00`);
    fade.addColorStop(0.12, colour);
    fade.addColorStop(0.88, colour);
    fade.addColorStop(1, `${colour}00`);
    return fade;
  }

  #drawSide(side, direction, colour, radius, fraction) {
    if (side.still) return;
    const points = this.#outline(side, direction, radius * 0.72, fraction);
    const pen = this.#pen;
    pen.fillStyle = pen.strokeStyle = this.#fading(colour);
    pen.lineWidth = 1.25;
    this.#trace(points, 1);
    pen.globalAlpha = 0.1;
    pen.fill();
    for (const [scale, alpha] of STRANDS) {
      this.#trace(points, scale);
      pen.globalAlpha = alpha;
      pen.stroke();
    }
    this.#trace(points, 0.18);
    pen.globalAlpha = 1;
    pen.fill();
  }

  /** Pairs of x and height, from behind the button outwards. */
  #outline(side, direction, start, fraction) {
    const calm = this.#calm.matches;
    const reach = this.#width / 2 - start;
    const tall = this.#height / 2 - 3;
    const count = Math.floor(reach / PIXELS_PER_TICK);
    const points = [];
    for (let k = 0; k <= count; k += 1) {
      const away = (calm ? k : k + fraction) * PIXELS_PER_TICK;
      const height = calm ? side.height : (side.trail[k] ?? 0);
      const outward = Math.max(0, 1 - away / reach);
      const near = Math.min(1, away / SHOULDER);
      const shape = near * near * (3 - 2 * near) * outward;
      points.push([this.#width / 2 + direction * (start + away), height * shape * tall]);
    }
    return points;
  }

  #trace(points, scale) {
    const pen = this.#pen;
    const middle = this.#height / 2;
    pen.beginPath();
    pen.moveTo(points[0][0], middle);
    for (const [x, height] of points) pen.lineTo(x, middle - height * scale);
    for (let k = points.length - 1; k >= 0; k -= 1) {
      pen.lineTo(points[k][0], middle + points[k][1] * scale);
    }
    pen.closePath();
  }
}
