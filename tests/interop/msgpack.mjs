// The part of msgpack that the protocol uses, with its bounds. Nothing is allocated before its length was checked.
// Integers are BigInt and floats are Number, so that both come back as they were written.

export const MAX_DEPTH = 4
export const MAX_VALUES = 1024
export const MAX_ENTRIES = 32
export const MAX_ELEMENTS = 64
export const MAX_TEXT_BYTES = 16 * 1024

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

export class WireError extends Error {
  constructor (reason, detail) {
    super(`${reason}: ${detail}`)
    this.reason = reason
  }
}

export function encode (value) {
  if (value === null) return Buffer.of(0xc0)
  if (typeof value === 'boolean') return Buffer.of(value ? 0xc3 : 0xc2)
  if (typeof value === 'bigint') return integer(value)
  if (typeof value === 'number') {
    const bytes = Buffer.alloc(9, 0xcb)
    bytes.writeDoubleBE(value, 1)
    return bytes
  }
  if (typeof value === 'string') return text(Buffer.from(value, 'utf8'))
  if (value instanceof Uint8Array) {
    return Buffer.concat([header([[0xff, 0xc4, 1], [0xffff, 0xc5, 2], [0xffffffff, 0xc6, 4]], value.length), value])
  }
  if (Array.isArray(value)) {
    return Buffer.concat([short(value.length, 0x90, [[0xffff, 0xdc, 2]]), ...value.map(encode)])
  }
  const entries = Object.entries(value)
  return Buffer.concat([short(entries.length, 0x80, [[0xffff, 0xde, 2]]), ...entries.flat().map(encode)])
}

function text (bytes) {
  const forms = [[0xff, 0xd9, 1], [0xffff, 0xda, 2]]
  return Buffer.concat([bytes.length < 32 ? Buffer.of(0xa0 | bytes.length) : header(forms, bytes.length), bytes])
}

function short (length, first, forms) {
  return length < 16 ? Buffer.of(first | length) : header(forms, length)
}

function header (forms, length) {
  const [, first, size] = forms.find(([most]) => length <= most)
  const bytes = Buffer.alloc(1 + size, first)
  bytes.writeUIntBE(length, 1, size)
  return bytes
}

function integer (value) {
  if (value < 0n) throw new RangeError('the protocol has no negative integers')
  if (value < 128n) return Buffer.of(Number(value))
  const size = [1, 2, 4, 8].find((bytes) => value < 1n << BigInt(8 * bytes))
  const hex = value.toString(16).padStart(2 * size, '0')
  return Buffer.concat([Buffer.of(0xcc + Math.log2(size)), Buffer.from(hex, 'hex')])
}

export function decode (data) {
  const state = { data: Buffer.from(data.buffer, data.byteOffset, data.length), at: 0, values: 0 }
  const value = next(state, 0)
  if (state.at !== data.length) throw new WireError('shape', 'something follows')
  return value
}

function next (state, depth) {
  if (++state.values > MAX_VALUES) throw new WireError('shape', 'too many values')
  const first = take(state, 1)[0]
  if (first < 0x80) return BigInt(first)
  if (first < 0x90) return map(state, first & 0x0f, depth)
  if (first < 0xa0) return array(state, first & 0x0f, depth)
  if (first < 0xc0) return string(state, first & 0x1f)
  if (first >= 0xe0) return BigInt(first - 256)
  switch (first) {
    case 0xc0: return null
    case 0xc2: return false
    case 0xc3: return true
    case 0xc4: case 0xc5: case 0xc6: return take(state, length(state, 1 << (first - 0xc4)))
    case 0xca: return take(state, 4).readFloatBE()
    case 0xcb: return take(state, 8).readDoubleBE()
    case 0xcc: case 0xcd: case 0xce: case 0xcf: return unsigned(state, 1 << (first - 0xcc))
    case 0xd0: case 0xd1: case 0xd2: case 0xd3: {
      const size = 1 << (first - 0xd0)
      return BigInt.asIntN(8 * size, unsigned(state, size))
    }
    case 0xd9: case 0xda: case 0xdb: return string(state, length(state, 1 << (first - 0xd9)))
    case 0xdc: case 0xdd: return array(state, length(state, 2 << (first - 0xdc)), depth)
    case 0xde: case 0xdf: return map(state, length(state, 2 << (first - 0xde)), depth)
    default: throw new WireError('shape', 'a value of a kind that is not allowed')
  }
}

function take (state, size) {
  if (size > state.data.length - state.at) throw new WireError('shape', 'cut off')
  state.at += size
  return state.data.subarray(state.at - size, state.at)
}

function length (state, size) {
  return take(state, size).readUIntBE(0, size)
}

function unsigned (state, size) {
  return BigInt(`0x${take(state, size).toString('hex')}`)
}

function string (state, size) {
  if (size > MAX_TEXT_BYTES) throw new WireError('shape', 'a text that is too long')
  const bytes = take(state, size)
  try {
    return utf8.decode(bytes)
  } catch {
    throw new WireError('shape', 'text that is not UTF-8')
  }
}

function array (state, size, depth) {
  if (size > MAX_ELEMENTS || depth === MAX_DEPTH) throw new WireError('shape', 'an array too long or too deep')
  return Array.from({ length: size }, () => next(state, depth + 1))
}

function map (state, size, depth) {
  if (size > MAX_ENTRIES || depth === MAX_DEPTH) throw new WireError('shape', 'a map too large or too deep')
  const found = Object.create(null)
  for (let entry = 0; entry < size; entry++) {
    const key = next(state, depth + 1)
    if (typeof key !== 'string' || key in found) throw new WireError('shape', 'a key that is no text, or occurs twice')
    found[key] = next(state, depth + 1)
  }
  return found
}
