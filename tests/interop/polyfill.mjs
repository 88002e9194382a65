// What js-libp2p uses of Node 22. Debian 12 has Node 18.

import { webcrypto } from 'node:crypto'

globalThis.crypto ??= webcrypto

globalThis.CustomEvent ??= class CustomEvent extends Event {
  constructor (type, options = {}) {
    super(type, options)
    this.detail = options.detail ?? null
  }
}

Promise.withResolvers ??= function () {
  const found = {}
  found.promise = new this((resolve, reject) => Object.assign(found, { resolve, reject }))
  return found
}
