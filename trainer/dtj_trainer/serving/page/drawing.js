// The box to draw in, by a pointer or by keys.

const STEP = 10; // How far a key press moves the pen, in pixels of the canvas.
const WIDTH = 20; // The width of a line, in pixels of the canvas.
const WAYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class Drawing {
  // pen: the element that marks the pen that keys move. light: the radio button for white on black. says: the element
  // from which screen readers read the place of the pen. on.shown() is called after each change; on.drawn(blob) after
  // each line, with null for an empty box.
  constructor(canvas, pen, light, says, on) {
    Object.assign(this, { canvas, pen, light, says, on });
    this.lines = []; // Each of them is a list of points.
    this.line = null; // The line that is being drawn.
    this.place = [canvas.width / 2, canvas.height / 2]; // The place of the pen that keys move.
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !event.isPrimary) return;
      canvas.setPointerCapture(event.pointerId);
      this.#begin(this.#pointOf(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (canvas.hasPointerCapture(event.pointerId)) this.#move(this.#pointOf(event));
    });
    for (const kind of ["pointerup", "pointercancel", "blur"]) canvas.addEventListener(kind, () => this.#end());
    canvas.addEventListener("keydown", (event) => this.#press(event));
  }

  undo() {
    this.lines.pop();
    this.line = null;
    this.#show();
    this.#give();
  }

  clear() {
    this.lines = [];
    this.line = null;
    this.#show();
  }

  recolour() {
    this.#show();
    if (this.lines.length) this.#give();
  }

  #begin(point) {
    this.line = [point];
    this.lines.push(this.line);
    this.#show();
  }

  #move(point) {
    this.line?.push(point);
    this.#show();
  }

  #end() {
    if (!this.line) return;
    this.line = null;
    this.#show();
    this.#give();
  }

  #press(event) {
    const way = WAYS[event.key];
    if (!(way || event.key === " ") || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault(); // Otherwise the page scrolls.
    if (way) {
      const far = event.shiftKey ? 4 * STEP : STEP;
      const most = [this.canvas.width, this.canvas.height];
      this.place = this.place.map((value, axis) => Math.min(most[axis], Math.max(0, value + far * way[axis])));
      this.#move(this.place);
    } else if (this.line) {
      this.#end();
    } else if (!event.repeat) {
      this.#begin(this.place);
    }
    const [column, row] = this.place.map((value) => value / STEP);
    const last = this.canvas.width / STEP;
    this.says.textContent = `Pen ${this.line ? "down" : "up"}, column ${column}, row ${row} of ${last}`;
  }

  #pointOf(event) {
    const { left, top, width } = this.canvas.getBoundingClientRect();
    const scale = this.canvas.width / width;
    return [(event.clientX - left) * scale, (event.clientY - top) * scale];
  }

  #show() {
    const { width, height } = this.canvas;
    const paint = this.canvas.getContext("2d");
    const [ground, ink] = this.light.checked ? ["#000", "#fff"] : ["#fff", "#000"];
    Object.assign(paint, { fillStyle: ground, strokeStyle: ink, lineWidth: WIDTH, lineCap: "round", lineJoin: "round" });
    paint.fillRect(0, 0, width, height);
    paint.fillStyle = ink;
    for (const [first, ...others] of this.lines) {
      paint.beginPath();
      paint.arc(...first, WIDTH / 2, 0, 2 * Math.PI); // A line of one point is a dot.
      paint.fill();
      paint.beginPath();
      paint.moveTo(...first);
      for (const point of others) paint.lineTo(...point);
      paint.stroke();
    }
    this.pen.style.left = `${(100 * this.place[0]) / width}%`;
    this.pen.style.top = `${(100 * this.place[1]) / height}%`;
    this.pen.classList.toggle("down", Boolean(this.line));
    this.on.shown();
  }

  #give() {
    const lines = this.lines;
    if (!lines.length) {
      this.on.drawn(null);
      return;
    }
    this.canvas.toBlob((blob) => {
      if (this.lines === lines) this.on.drawn(blob); // Otherwise the box was cleared meanwhile.
    }, "image/png");
  }
}
