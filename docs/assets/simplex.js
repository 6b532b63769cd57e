// An interactive belief about three classes: drag votes over the simplex and see the Dirichlet that follows.
"use strict"

const Dirichlet = {
  // Digamma by recurrence up to 8, then the asymptotic series.
  digamma(x) {
    let shift = 0
    while (x < 8) shift -= 1 / x++
    const w = 1 / (x * x)
    return shift + Math.log(x) - 0.5 / x - w * (1 / 12 - w * (1 / 120 - w * (1 / 252 - w / 240)))
  },

  // What `Belief` calls probs, entropy, expected_entropy and mutual_information, and standard deviations.
  measures(alpha) {
    const total = alpha.reduce((sum, a) => sum + a, 0)
    const probs = alpha.map(a => a / total)
    const deviation = probs.map(p => Math.sqrt((p * (1 - p)) / (total + 1)))
    const entropy = -probs.reduce((sum, p) => sum + p * Math.log(p), 0)
    const expected = probs.reduce(
      (sum, p, k) => sum + p * (Dirichlet.digamma(total + 1) - Dirichlet.digamma(alpha[k] + 1)), 0)
    return { total, probs, deviation, entropy, expected, information: Math.max(0, entropy - expected) }
  },
}

class Simplex {
  constructor(root) {
    this.root = root
    this.names = root.dataset.classes.split(",")
    this.counts = [4, 1, 1]
    this.build()
    this.resize()
    new ResizeObserver(() => this.resize()).observe(this.canvas)
    new MutationObserver(() => this.draw()).observe(document.body, { attributes: true })
  }

  build() {
    const buttons = this.names.map((name, k) =>
      `<button type="button" data-add="${k}">+1 vote for ${name}</button>`).join("")
    const bars = this.names.map(name =>
      `<tr><th scope="row">${name}</th><td class="bar"><i></i><b></b></td><td class="number"></td></tr>`).join("")
    this.root.innerHTML = `
      <div class="simplex-figure">
        <canvas tabindex="0" role="slider" aria-label="Shares of the votes; move with the arrow keys"></canvas>
        <div class="simplex-buttons">${buttons}<button type="button" data-reset>No votes</button></div>
      </div>
      <div class="simplex-side">
        <label>Votes <output data-for="votes"></output>
          <input type="range" data-name="votes" min="0" max="60" step="1"></label>
        <label>Prior β of each class <output data-for="prior"></output>
          <input type="range" data-name="prior" min="-1" max="1" step="0.05" value="0"></label>
        <label>Weight of the prior λ <output data-for="weight"></output>
          <input type="range" data-name="weight" min="-2" max="0" step="0.05" value="0"></label>
        <table class="simplex-bars">${bars}</table>
        <dl>
          <dt>concentrations α</dt><dd data-show="alpha"></dd>
          <dt>entropy</dt><dd data-show="entropy"></dd>
          <dt>mutual information</dt><dd data-show="information"></dd>
        </dl>
      </div>`
    this.canvas = this.root.querySelector("canvas")
    this.inputs = Object.fromEntries([...this.root.querySelectorAll("input")].map(one => [one.dataset.name, one]))
    this.inputs.votes.addEventListener("input", () => this.setTotal(+this.inputs.votes.value))
    for (const name of ["prior", "weight"]) this.inputs[name].addEventListener("input", () => this.draw())
    this.root.querySelectorAll("[data-add]").forEach(one =>
      one.addEventListener("click", () => { this.counts[+one.dataset.add] += 1; this.draw() }))
    this.root.querySelector("[data-reset]").addEventListener("click", () => { this.counts = [0, 0, 0]; this.draw() })
    this.canvas.addEventListener("pointerdown", event => { this.canvas.setPointerCapture(event.pointerId); this.drag(event) })
    this.canvas.addEventListener("pointermove", event => { if (event.buttons) this.drag(event) })
    this.canvas.addEventListener("keydown", event => this.step(event))
  }

  // Geometry, in pixels of the screen: corners of an equilateral triangle.
  resize() {
    const width = this.canvas.clientWidth, height = Math.round(width * 0.92), pad = 26
    if (!width || width === this.width) return
    const ratio = window.devicePixelRatio || 1
    Object.assign(this, { width, height, ratio })
    this.canvas.style.height = `${height}px`
    this.canvas.width = Math.round(width * ratio)
    this.canvas.height = Math.round(height * ratio)
    const side = width - 2 * pad
    this.corners = [[width / 2, pad], [pad, pad + side * 0.866], [width - pad, pad + side * 0.866]]
    this.pixels = this.logsOfPixels()
    this.draw()
  }

  sharesAt(x, y) {
    const [[ax, ay], [bx, by], [cx, cy]] = this.corners
    const area = (by - cy) * (ax - cx) + (cx - bx) * (ay - cy)
    const a = ((by - cy) * (x - cx) + (cx - bx) * (y - cy)) / area
    const b = ((cy - ay) * (x - cx) + (ax - cx) * (y - cy)) / area
    return [a, b, 1 - a - b]
  }

  placeOf(shares) {
    return [0, 1].map(axis => shares.reduce((sum, p, k) => sum + p * this.corners[k][axis], 0))
  }

  // Logarithms of the probabilities at every pixel inside, once for each size.
  logsOfPixels() {
    const found = []
    for (let row = 0; row < this.canvas.height; row++)
      for (let column = 0; column < this.canvas.width; column++) {
        const shares = this.sharesAt((column + 0.5) / this.ratio, (row + 0.5) / this.ratio)
        if (Math.min(...shares) > 1e-3)
          found.push([row * this.canvas.width + column, ...shares.map(Math.log)])
      }
    return found
  }

  total() {
    return this.counts.reduce((sum, c) => sum + c, 0)
  }

  shares() {
    const total = this.total()
    return total ? this.counts.map(c => c / total) : this.lastShares || [1 / 3, 1 / 3, 1 / 3]
  }

  setShares(shares) {
    const inside = shares.map(p => Math.max(0, p)), sum = inside.reduce((all, p) => all + p, 0)
    const total = this.total() || 6
    this.lastShares = inside.map(p => p / sum)
    this.counts = this.lastShares.map(p => p * total)
    this.draw()
  }

  setTotal(total) {
    const shares = this.shares()
    this.lastShares = shares
    this.counts = shares.map(p => p * total)
    this.draw()
  }

  drag(event) {
    const box = this.canvas.getBoundingClientRect()
    this.setShares(this.sharesAt(event.clientX - box.left, event.clientY - box.top))
    event.preventDefault()
  }

  step(event) {
    const moves = { ArrowLeft: [-6, 0], ArrowRight: [6, 0], ArrowUp: [0, -6], ArrowDown: [0, 6] }
    if (!(event.key in moves)) return
    const [x, y] = this.placeOf(this.shares()), [dx, dy] = moves[event.key]
    this.setShares(this.sharesAt(x + dx, y + dy))
    event.preventDefault()
  }

  draw() {
    const prior = 10 ** +this.inputs.prior.value, weight = 10 ** +this.inputs.weight.value
    const alpha = this.counts.map(c => prior + c / weight)
    this.tell(prior, weight, alpha)
    if (this.pixels) this.paint(alpha)
  }

  paint(alpha) {
    const context = this.canvas.getContext("2d"), style = getComputedStyle(this.root)
    const image = context.createImageData(this.canvas.width, this.canvas.height)
    const [red, green, blue] = style.getPropertyValue("--simplex-colour").split(",").map(Number)
    const logs = this.pixels.map(([, ...logs]) => logs.reduce((sum, l, k) => sum + (alpha[k] - 1) * l, 0))
    const highest = logs.reduce((most, one) => Math.max(most, one), -Infinity)
    const isEven = alpha.every(a => Math.abs(a - 1) < 1e-9)
    this.pixels.forEach(([place], index) => {
      const strength = isEven ? 0.3 : 0.95 * Math.exp(logs[index] - highest) ** 0.7
      image.data.set([red, green, blue, Math.round(255 * strength)], 4 * place)
    })
    context.putImageData(image, 0, 0)
    context.save()
    context.scale(this.ratio, this.ratio)
    this.outline(context, style)
    context.restore()
  }

  outline(context, style) {
    const ink = style.getPropertyValue("--simplex-ink")
    context.strokeStyle = context.fillStyle = ink
    context.lineWidth = 1.2
    context.beginPath()
    this.corners.forEach(([x, y], k) => (k ? context.lineTo(x, y) : context.moveTo(x, y)))
    context.closePath()
    context.stroke()
    context.font = "600 14px system-ui, sans-serif"
    context.textAlign = "center"
    this.corners.forEach(([x, y], k) => context.fillText(this.names[k], x, y + (k ? 19 : -8)))
    const [x, y] = this.placeOf(this.shares())
    context.beginPath()
    context.arc(x, y, 8, 0, 2 * Math.PI)
    context.fillStyle = style.getPropertyValue("--simplex-dot")
    context.globalAlpha = this.total() ? 1 : 0.35
    context.fill()
    context.lineWidth = 2.5
    context.stroke()
  }

  tell(prior, weight, alpha) {
    const found = Dirichlet.measures(alpha)
    const digits = value => (value >= 100 ? value.toFixed(0) : value.toFixed(value >= 10 ? 1 : 2))
    this.inputs.votes.value = this.total()
    const shown = { votes: this.counts.map(c => digits(c)).join(" + "), prior: digits(prior), weight: weight.toFixed(2) }
    for (const [name, text] of Object.entries(shown)) this.root.querySelector(`[data-for=${name}]`).textContent = text
    const values = {
      alpha: alpha.map(digits).join(", "),
      entropy: `${found.entropy.toFixed(3)} nats`,
      information: `${found.information.toFixed(3)} nats`,
    }
    for (const [name, text] of Object.entries(values)) this.root.querySelector(`[data-show=${name}]`).textContent = text
    this.root.querySelectorAll("tr").forEach((row, k) => {
      const p = found.probs[k], low = Math.max(0, p - found.deviation[k]), high = Math.min(1, p + found.deviation[k])
      row.querySelector("i").style.width = `${100 * p}%`
      Object.assign(row.querySelector("b").style, { left: `${100 * low}%`, width: `${100 * (high - low)}%` })
      row.querySelector(".number").textContent = `${p.toFixed(2)} ± ${found.deviation[k].toFixed(2)}`
    })
    const text = this.names.map((name, k) => `${name} ${(100 * this.shares()[k]).toFixed(0)} %`).join(", ")
    this.canvas.setAttribute("aria-valuetext", text)
    this.canvas.setAttribute("aria-valuenow", (100 * this.shares()[0]).toFixed(0))
  }
}

document.querySelectorAll(".simplex").forEach(root => new Simplex(root))
