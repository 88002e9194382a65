// Rollouts, messages, requests and responses, written by docs/network.md.

import { createHash, createPublicKey, verify } from 'node:crypto'
import { deflateSync, inflateSync } from 'node:zlib'
import { decode, encode, WireError } from './msgpack.mjs'

export { WireError }
export const MAX_MESSAGE_BYTES = 48 * 1024
export const MAX_UNPACKED_BYTES = 512 * 1024
export const MAX_BODY_BYTES = 320 * 1024
export const MAX_REQUEST_BYTES = 4 * 1024
export const MAX_RESPONSE_BYTES = 512 * 1024
export const MAX_ROLLOUTS = 64
export const MAX_ANNOUNCED = 64
export const MAX_REQUESTED = 32
const MAX_MANIFEST_BYTES = 256 * 1024
const PIECE_BYTES = 256 * 1024
const MAX_DATA_BYTES = 64_000_000n
const MAX_ANSWERS = 32
const CONTEXT = Buffer.from('sapo-edge rollout v1\0', 'latin1')
const SWARM_KEY = Buffer.from('\xa5swarm\xc4\x20', 'latin1')
const AUTHOR_KEY = Buffer.from('\xa6author\xc4\x20', 'latin1')
// The y coordinates of the points whose order divides 8, also those that are not reduced; the sign bit left out.
const SMALL_ORDER = new Set([
  '00'.repeat(32), '01' + '00'.repeat(31), 'ec' + 'ff'.repeat(30) + '7f', 'ed' + 'ff'.repeat(30) + '7f',
  'ee' + 'ff'.repeat(30) + '7f', '26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05',
  'c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a'
])

export const hex = (bytes) => Buffer.from(bytes).toString('hex')
export const bytesOf = (text) => Buffer.from(text, 'hex')
export const sha256 = (...parts) => createHash('sha256').update(Buffer.concat(parts)).digest()

// --- identities and swarms

export const ID_PREFIX = bytesOf('002408011220')
const ALPHABET = '123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz'

export function peerIdOf (publicKey) {
  let number = BigInt(`0x${hex(ID_PREFIX)}${hex(publicKey)}`)
  let text = ''
  for (; number > 0n; number /= 58n) text = ALPHABET[Number(number % 58n)] + text
  return `1${text}`
}

export function swarmId (manifest, key) {
  return key === null ? manifest : sha256(Buffer.from('sapo-edge private swarm v1\0'), manifest, key)
}

export const topicOf = (swarm) => `/sapo-edge/1/${hex(swarm)}`

// --- records

export const digestOf = (record) => sha256(record.body)

export function encodeBody (rollout, swarm, publicKey) {
  return encode({
    v: 1n,
    swarm,
    author: publicKey,
    round: BigInt(rollout.round),
    sequence: BigInt(rollout.sequence),
    time: rollout.time,
    task: {
      entry: rollout.task.entry,
      version: rollout.task.version,
      seed: BigInt(rollout.task.seed),
      index: BigInt(rollout.task.index)
    },
    question: rollout.question,
    ground_truth: rollout.ground_truth,
    answers: rollout.answers
  })
}

export const signedBytes = (body) => Buffer.concat([CONTEXT, body])

// The rollout of a record, as fields that JSON can hold. The signature is left to `verified`.
export function decodeRecord ({ body, signature }) {
  const { swarm, author } = head(body)
  if (signature.length !== 64) throw new WireError('shape', 'no signature')
  const fields = decode(body)
  const task = fields.task
  if (task === null || typeof task !== 'object' || Array.isArray(task) || task instanceof Uint8Array) {
    throw new WireError('shape', 'no task')
  }
  return {
    swarm,
    publicKey: author,
    rollout: {
      author: peerIdOf(author),
      round: integer(fields.round),
      sequence: integer(fields.sequence),
      time: time(fields.time),
      task: {
        entry: text(task.entry, 128),
        version: text(task.version, 128),
        seed: integer(task.seed),
        index: integer(task.index)
      },
      question: text(fields.question, 16 * 1024),
      ground_truth: text(fields.ground_truth, 16 * 1024),
      answers: array(fields.answers, 1, MAX_ANSWERS).map(answer)
    }
  }
}

export function verified ({ body, signature }) {
  const { author } = head(body)
  if (ofSmallOrder(author) || ofSmallOrder(signature.subarray(0, 32))) return false
  const x = author.toString('base64url')
  const key = createPublicKey({ key: { kty: 'OKP', crv: 'Ed25519', x }, format: 'jwk' })
  return verify(null, signedBytes(body), key, signature)
}

// Node's verify() takes them for good.
function ofSmallOrder (point) {
  const y = Buffer.from(point)
  y[31] &= 0x7f
  return SMALL_ORDER.has(hex(y))
}

function head (body) {
  if (body.length > MAX_BODY_BYTES) throw new WireError('size', 'a body that is too large')
  const swarm = checkVersion(body) + SWARM_KEY.length
  const author = swarm + 32 + AUTHOR_KEY.length
  if (!body.subarray(swarm - SWARM_KEY.length, swarm).equals(SWARM_KEY) || body.length < author + 32 ||
      !body.subarray(swarm + 32, author).equals(AUTHOR_KEY)) {
    throw new WireError('shape', 'swarm and author do not follow the version')
  }
  return { swarm: body.subarray(swarm, swarm + 32), author: body.subarray(author, author + 32) }
}

// Where the second entry of a map begins, if the first one is the version.
function checkVersion (data) {
  const first = data[0] ?? 0
  const at = { 0xde: 3, 0xdf: 5 }[first] ?? 1
  if (!((first > 0x80 && first < 0x90) || at > 1) || data[at] !== 0xa1 || data[at + 1] !== 0x76 || data.length < at + 3) {
    throw new WireError('shape', 'no map that begins with its version')
  }
  const version = data[at + 2]
  if (version > 0x7f && !(version >= 0xcc && version <= 0xcf)) throw new WireError('shape', 'the version is no number')
  if (version !== 1) throw new WireError('version', 'another version')
  return at + 3
}

function decodeMap (data, limit) {
  if (data.length > limit) throw new WireError('size', 'too large')
  checkVersion(data)
  return decode(data)
}

function text (value, most) {
  if (typeof value !== 'string' || Buffer.byteLength(value) > most) throw new WireError('shape', 'no text within bounds')
  return value
}

function integer (value, least = 0n, most = 2n ** 63n - 1n) {
  if (typeof value !== 'bigint' || value < least || value > most) throw new WireError('shape', 'no integer within bounds')
  return value.toString()
}

function time (value) {
  const seconds = typeof value === 'bigint' ? Number(value) : value
  if (typeof seconds !== 'number' || !(seconds >= 0 && seconds < 2 ** 37)) throw new WireError('shape', 'no time')
  return seconds
}

function answer (value) {
  if (!Array.isArray(value) || value.length < 2 || typeof value[1] !== 'boolean') throw new WireError('shape', 'no answer')
  return [text(value[0], 8 * 1024), value[1]]
}

function array (value, least, most) {
  if (!Array.isArray(value) || value.length < least || value.length > most) throw new WireError('shape', 'no array within bounds')
  return value
}

function digest (value) {
  if (!(value instanceof Uint8Array) || value.length !== 32) throw new WireError('shape', 'no digest')
  return value
}

function record (value) {
  if (!Array.isArray(value) || !(value[0] instanceof Uint8Array) || !(value[1] instanceof Uint8Array) || value[1].length !== 64) {
    throw new WireError('shape', 'no body with its signature')
  }
  return { body: value[0], signature: value[1] }
}

const pairs = (records) => records.map(({ body, signature }) => [body, signature])

// --- messages, requests, responses

export function encodeMessage (swarm, records, announced) {
  const plain = encode({ v: 1n, swarm, rollouts: pairs(records), have: announced })
  return Buffer.concat([Buffer.of(1), deflateSync(plain)])
}

export function decodeMessage (data) {
  if (data.length > MAX_MESSAGE_BYTES) throw new WireError('size', 'a message that is too large')
  const fields = decodeMap(unpacked(data), MAX_UNPACKED_BYTES)
  return {
    swarm: digest(fields.swarm),
    records: array(fields.rollouts, 0, MAX_ROLLOUTS).map(record),
    announced: array(fields.have, 0, MAX_ANNOUNCED).map(digest)
  }
}

function unpacked (data) {
  if (data[0] === 0) return data.subarray(1)
  if (data[0] !== 1) throw new WireError('shape', 'compressed in an unknown way')
  try {
    const { buffer, engine } = inflateSync(data.subarray(1), { maxOutputLength: MAX_UNPACKED_BYTES, info: true })
    if (engine.bytesWritten !== data.length - 1) throw new WireError('shape', 'something follows')
    return buffer
  } catch (error) {
    if (error instanceof WireError) throw error
    throw new WireError(error.code === 'ERR_BUFFER_TOO_LARGE' ? 'size' : 'shape', 'not to be decompressed')
  }
}

export function encodeRequest (request) {
  const { kind, digests, swarm, count, offset } = request
  if (kind === 'rollouts') return encode({ v: 1n, kind, digests })
  if (kind === 'recent') return encode({ v: 1n, kind, swarm, count: BigInt(count) })
  if (kind === 'questions') return encode({ v: 1n, kind, digest: digests[0], offset: BigInt(offset) })
  return encode({ v: 1n, kind: 'manifest', digest: digests[0] })
}

export function decodeRequest (data) {
  const fields = decodeMap(data, MAX_REQUEST_BYTES)
  switch (fields.kind) {
    case 'rollouts':
      return { kind: 'rollouts', digests: array(fields.digests, 1, MAX_REQUESTED).map(digest) }
    case 'recent':
      return { kind: 'recent', swarm: digest(fields.swarm), count: Number(integer(fields.count, 1n, BigInt(MAX_ROLLOUTS))) }
    case 'manifest':
      return { kind: 'manifest', digests: [digest(fields.digest)] }
    case 'questions':
      return { kind: 'questions', digests: [digest(fields.digest)], offset: Number(integer(fields.offset, 0n, MAX_DATA_BYTES)) }
    default:
      throw new WireError('shape', 'a request of no known kind')
  }
}

export const encodeResponse = (records) => encode({ v: 1n, rollouts: pairs(records) })
export const encodeManifestResponse = (manifest) => encode({ v: 1n, manifest })
// Not compressed: whoever sends a piece may choose.
export const encodePieceResponse = (piece) => encode({ v: 1n, questions: piece === null ? null : Buffer.concat([Buffer.of(0), piece]) })

export function decodeResponse (data) {
  const fields = decodeMap(data, MAX_RESPONSE_BYTES)
  if ('rollouts' in fields) return { records: array(fields.rollouts, 0, MAX_ROLLOUTS).map(record), manifest: null }
  if (fields.questions === null || fields.questions instanceof Uint8Array) {
    const piece = fields.questions && unpacked(fields.questions)
    if (piece !== null && piece.length > PIECE_BYTES) throw new WireError('size', 'a piece that is too long')
    return { records: [], manifest: null, piece }
  }
  if (fields.manifest === null) return { records: [], manifest: null }
  if (!(fields.manifest instanceof Uint8Array) || fields.manifest.length === 0 || fields.manifest.length > MAX_MANIFEST_BYTES) {
    throw new WireError('shape', 'neither rollouts nor a manifest')
  }
  return { records: [], manifest: fields.manifest }
}

export function frame (data) {
  const length = Buffer.alloc(4)
  length.writeUInt32BE(data.length)
  return Buffer.concat([length, data])
}
