// Search in pages that are opened from disk: browsers start no worker there, so a hidden frame takes its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = (this.inside = frame.contentWindow)
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...urls) => urls.forEach(one => this.load(one))
      this.load(url, () => {
        this.ready = true
        this.waiting.forEach(data => this.deliver(data))
      })
    }
    load(url, then) {
      const script = this.inside.document.createElement("script")
      script.src = url
      script.async = false
      script.onload = then
      this.inside.document.body.append(script)
    }
    postMessage(data) {
      this.ready ? this.deliver(data) : this.waiting.push(data)
    }
    deliver(data) {
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }))
    }
    terminate() {}
  }
}
